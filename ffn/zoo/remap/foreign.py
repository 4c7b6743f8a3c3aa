"""Build a network from another implementation's state dict: detect, rename, compare, load."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ffn import backbones
from ffn.core import convert, frame_ranges
from ffn.limits import CLASSES
from ffn.zoo.records import WeightsError
from ffn.zoo.remap import names
from ffn.zoo.remap.names import State, is_flexible
from ffn.zoo.state_match import HEADS, Match, match_state, new_head


def _has(state: Mapping[str, Tensor], *patterns: str) -> bool:
    """Whether every pattern matches the start of a name."""
    return all(any(re.match(pattern, key) for key in state) for pattern in patterns)


_ENCODER = r"(videomae\.|vjepa2\.)?(encoder\.)?"
_SHIFTED = r".*\.(conv1|conv\.0)\.net\."  # in TSM's repository, the convolution of a TemporalShift


def _is_ffn_pytorch(state: Mapping[str, Tensor]) -> bool:
    plain = _has(state, r"base_model\.", r"new_fc\.") and not _has(state, _SHIFTED)
    return plain or (is_flexible(state) and _has(state, r"base_model\.|s1\.|patch_embed"))


# Recognizes the checkpoints of each source; the first one that matches is taken.
SOURCES: dict[str, Callable[[Mapping[str, Tensor]], bool]] = {
    "ffn-pytorch": _is_ffn_pytorch,
    "tsm": lambda state: _has(state, r"base_model\.", _SHIFTED),
    "pyslowfast": lambda state: _has(state, r"s1\.pathway0_stem|res2_0_branch2a_w$"),
    "uniformer": lambda state: _has(state, r"patch_embed1\.", r"blocks1\."),
    "videomae": lambda state: _has(state, r"(encoder\.)?blocks\.0\.attn\.q_bias$"),
    "huggingface": lambda state: _has(state, rf"{_ENCODER}embeddings\.", rf"{_ENCODER}layer\.0\."),
    "mmaction2": lambda state: _has(state, r"backbone\.", r"cls_head\."),
    "image": lambda state: _has(state, r"(conv1|stem|conv_stem|features\.0)\."),
}


def detect_source(state: Mapping[str, Tensor]) -> str:
    """The source, one of `SOURCES`, of a state dict, by the names of its entries.

    Raises:
        WeightsError: no source matches.
    """
    for source, wrote in SOURCES.items():
        if wrote(state):
            return source
    first = ", ".join(list(state)[:3])
    raise WeightsError(
        f"the names of its entries ({first}, …) are of none of {', '.join(SOURCES)}; if it is of "
        "one of them, pass it as --from. If other modules are beside the network, as a loss, save "
        "the entries of the network alone"
    )


def rename(
    state: Mapping[str, Tensor], source: str, trained_frames: tuple[int, ...] | None = None
) -> State:
    """The entries of a source's checkpoint with the names of our networks.

    Raises:
        ValueError: unknown source, or a flexible checkpoint without its three counts.
    """
    if source not in SOURCES:
        raise ValueError(f'source is "{source}"; allowed: {", ".join(SOURCES)}')
    if source == "ffn-pytorch":
        return names.ffn_pytorch(state, trained_frames)
    if source == "pyslowfast" and not any("." in key for key in state):
        return names.caffe2(state)
    return getattr(names, source)(state)


def preprocessing_of(source: str, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Preprocessing of a source's networks, where it differs from 224 px RGB and ImageNet's mean.

    The code of SlowFast and of UniFormer subtracts 0.45 and divides by 0.225; UniFormer in
    FFN-pytorch was trained on BGR. VideoMAE resizes the shorter side to that of the crop.
    """
    if source in ("videomae", "huggingface"):
        return {"resize": 224}
    if not _has(state, r"s1\.|patch_embed|res2_0_branch2a_w$"):
        return {}
    known: dict[str, Any] = {"mean": [0.45] * 3, "std": [0.225] * 3}
    if source == "ffn-pytorch":
        known["sampling"] = "interval"
        known["color"] = "bgr" if _has(state, "patch_embed") else "rgb"
    return known


@dataclass(frozen=True)
class Converted:
    """A converted checkpoint.

    Attributes:
        model: the network.
        source: the implementation that wrote the checkpoint.
        num_classes: of the network.
        trained_frames: its counts, ascending; None for a plain network.
        match: which entries came from the checkpoint.
        preprocessing: see :func:`preprocessing_of`.
    """

    model: nn.Module
    source: str
    num_classes: int
    trained_frames: tuple[int, ...] | None
    match: Match
    preprocessing: dict[str, Any]


def from_foreign(
    state: Mapping[str, Tensor],
    *,
    model: str,
    source: str | None = None,
    trained_frames: tuple[int, ...] | None = None,
    num_classes: int | None = None,
) -> Converted:
    """Build our network from another implementation's state dict; every entry must match.

    Args:
        state: from :func:`~ffn.zoo.remap.read_foreign`.
        model: name of the model, see :func:`ffn.create_model`.
        source: one of `SOURCES`; by default detected from the names of the entries.
        trained_frames: the counts of a flexible checkpoint; for a plain one, those of the network
            to build: private copies start from the plain norm, alterations at N(0, 1e-3).
        num_classes: of the network; by default the checkpoint's. With another number, or for a
            checkpoint without a classifier, the classifier is new.

    Raises:
        ValueError: unknown source or model, or no counts for a flexible checkpoint.
        WeightsError: the checkpoint does not fit the model, or it has no classifier and no
            ``num_classes`` is given.
    """
    source = source or detect_source(state)
    if trained_frames is not None:
        trained_frames = tuple(frame_ranges(trained_frames))
    ours = rename(state, source, trained_frames)
    num_classes = _classes(ours, source) if num_classes is None else num_classes
    if refusal := CLASSES.refusal(num_classes):
        raise WeightsError(refusal)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # entries that the checkpoint lacks get the same values each time
        network = backbones.build(model, num_classes=num_classes)
        if source in ("tsm", "mmaction2"):
            _check_shifts(state, source, network)
        flexible = source == "ffn-pytorch" and is_flexible(state)
        if flexible:
            network = convert(network, trained_frames)
        own = network.state_dict()
        match = match_state(ours, own, head=new_head(own))
        match.require("the checkpoint", new_head=True)
        broken = [key for key, value in match.state.items() if not value.isfinite().all()]
        if broken:
            raise WeightsError(
                f"{len(broken)} of {len(match.state)} entries of the checkpoint hold NaN or "
                f"infinity, first {broken[0]}: its training diverged, or the file is damaged; use "
                "another checkpoint"
            )
        network.load_state_dict(match.state, strict=False)
        if trained_frames is not None and not flexible:
            network = convert(network, trained_frames)
    known = preprocessing_of(source, state)
    return Converted(network, source, num_classes, trained_frames, match, known)


def _classes(state: Mapping[str, Tensor], source: str) -> int:
    """The number of classes of a renamed checkpoint's classifier."""
    weights = (f"{head}.weight" for head in HEADS)
    head = next((state[key] for key in weights if key in state), None)
    if head is None:
        raise WeightsError(
            f"the checkpoint has no classifier under the names of {source}. If it is a backbone "
            "alone, pass --num-classes K for a new classifier; if it is of another source, --from"
        )
    return len(head)


def _check_shifts(state: Mapping[str, Tensor], source: str, network: nn.Module) -> None:
    """Refuse a TSM checkpoint with shifts in other blocks than the network: no shape differs then.

    The authors' R101 shifts in every second block, FFN's in every block.
    """
    if not isinstance(network, backbones.TSM):
        return
    shifted = {key: state[key] for key in state if re.search(r"\.net\.(conv\.)?weight$", key)}
    there = {key.removesuffix(".weight") for key in rename(shifted, source)}
    here = set(network.shifted)
    if there and there != here:
        raise WeightsError(
            f"the checkpoint shifts {len(there)} convolutions, the model {len(here)}: it belongs "
            "to another model, e.g. tsm_r101_alternate for the R101 of TSM's authors"
        )
