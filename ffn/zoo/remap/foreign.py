"""Another implementation's checkpoint as a network of ours: detect, rename, hold against, load."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ffn.backbones import TSM
from ffn.core import check_trained_frames, convert
from ffn.zoo.create import create_model
from ffn.zoo.match import Match, match_state
from ffn.zoo.records import WeightsError
from ffn.zoo.remap import sources
from ffn.zoo.remap.sources import State, is_flexible

_HEADS = ("net.fc.weight", "head.weight", "net.classifier.weight", "net.head.fc.weight")
_PARTIAL = "--partial (min_match=0.95) takes what matches, starts the rest anew and names it."


def _has(state: Mapping[str, Tensor], *patterns: str) -> bool:
    """Does every pattern match the start of some name?"""
    return all(any(re.match(pattern, key) for key in state) for pattern in patterns)


_SHIFTED = r".*\.(conv1|conv\.0)\.net\."  # in TSM's repository, the convolution of a TemporalShift


def _is_ffn_pytorch(state: Mapping[str, Tensor]) -> bool:
    plain = _has(state, r"base_model\.", r"new_fc\.") and not _has(state, _SHIFTED)
    return plain or (is_flexible(state) and _has(state, r"base_model\.|s1\.|patch_embed"))


def _is_pyslowfast(state: Mapping[str, Tensor]) -> bool:
    return _has(state, r"s1\.pathway0_stem") or _has(state, r"res2_0_branch2a_w$")


# What their checkpoints look like. A checkpoint that fits several belongs to the first.
SOURCES: dict[str, Callable[[Mapping[str, Tensor]], bool]] = {
    "ffn-pytorch": _is_ffn_pytorch,
    "tsm": lambda state: _has(state, r"base_model\.", _SHIFTED),
    "pyslowfast": _is_pyslowfast,
    "uniformer": lambda state: _has(state, r"patch_embed1\.", r"blocks1\."),
    "mmaction2": lambda state: _has(state, r"backbone\.", r"cls_head\."),
    "image": lambda state: _has(
        state, r"(conv1|stem|conv_stem|features\.0)\.", r"(fc|classifier|head)\."
    ),
}


def detect_source(state: Mapping[str, Tensor]) -> str:
    """The implementation, one of `SOURCES`, that wrote a state dict.

    Raises:
        WeightsError: none of them.
    """
    for source, wrote in SOURCES.items():
        if wrote(state):
            return source
    names = ", ".join(list(state)[:3])
    raise WeightsError(
        f"the names of its entries ({names}, …) are of none of {', '.join(SOURCES)}; if it is one "
        "of them, name it with --from"
    )


def rename(
    state: Mapping[str, Tensor], source: str, trained_frames: tuple[int, ...] | None = None
) -> State:
    """The entries of a source's checkpoint under our names.

    Raises:
        ValueError: unknown source, or a flexible checkpoint without its three counts.
    """
    if source not in SOURCES:
        raise ValueError(f'source is "{source}"; allowed: {", ".join(SOURCES)}')
    if source == "ffn-pytorch":
        return sources.ffn_pytorch(state, trained_frames)
    if source == "pyslowfast" and not any("." in key for key in state):
        return sources.caffe2(state)
    by_source = {
        "tsm": sources.tsm,
        "pyslowfast": sources.pyslowfast,
        "uniformer": sources.uniformer,
        "mmaction2": sources.mmaction2,
        "image": sources.image,
    }
    return by_source[source](state)


def preprocessing_of(source: str, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """What the networks of a source see, where it is not 224 px of RGB with ImageNet's mean.

    The code of SlowFast and of UniFormer subtracts 0.45 and divides by 0.225; UniFormer in
    FFN-pytorch was trained on BGR.
    """
    if not _has(state, r"s1\.|patch_embed|res2_0_branch2a_w$"):
        return {}
    known: dict[str, Any] = {"mean": [0.45] * 3, "std": [0.225] * 3}
    if source == "ffn-pytorch":
        known["sampling"] = "interval"
        known["colour"] = "bgr" if _has(state, "patch_embed") else "rgb"
    return known


@dataclass(frozen=True)
class Converted:
    """A foreign checkpoint as a network of ours.

    Attributes:
        model: the network.
        source: what wrote the checkpoint.
        num_classes: of its classifier.
        trained_frames: its counts, ascending; None for a plain network.
        match: what came from the checkpoint.
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
    min_match: float | None = None,
) -> Converted:
    """Build our network from another implementation's state dict.

    Args:
        state: from :func:`read_foreign`.
        model: as :func:`ffn.create_model` takes it.
        source: one of `SOURCES`; by default what its names look like.
        trained_frames: the counts of a flexible checkpoint; or, for a plain one, those of the
            network to build: private copies start from the plain norm, alterations at N(0, 1e-3).
        num_classes: of the network; by default the checkpoint's. Otherwise the classifier is new.
        min_match: None asks for every entry of both sides to match, but for a new classifier. A
            share, 0 to 1, is enough of the network's parameters: what the checkpoint lacks starts
            anew, what the network lacks is left out, and ``match`` names both.

    Raises:
        ValueError: unknown source or model, or no counts for a flexible checkpoint.
        WeightsError: the checkpoint does not fit the model.
    """
    source = source or detect_source(state)
    if trained_frames is not None:
        trained_frames = check_trained_frames(trained_frames)
    ours = rename(state, source, trained_frames)
    head = next((ours[key] for key in _HEADS if key in ours), None)
    if head is None:
        raise WeightsError(
            f"the checkpoint has no classifier: it is no complete network of {source}, or was "
            "written by another program (without --from, that is detected)"
        )
    num_classes = num_classes or len(head)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # what the checkpoint lacks starts alike each time
        network = create_model(model, num_classes=num_classes)
        if source in ("tsm", "mmaction2"):
            _check_shifts(state, source, network)
        flexible = source == "ffn-pytorch" and is_flexible(state)
        if flexible:
            network = convert(network, trained_frames)
        match = match_state(ours, network.state_dict())
        match.require("the checkpoint", new_head=True, enough=min_match, remedy=_PARTIAL)
        _check_finite(match.state)
        network.load_state_dict(match.state, strict=False)
        if trained_frames is not None and not flexible:
            network = convert(network, trained_frames)
    known = preprocessing_of(source, state)
    return Converted(network, source, num_classes, trained_frames, match, known)


def _check_finite(state: Mapping[str, Tensor]) -> None:
    """Refuse weights of a training that diverged."""
    broken = [key for key, value in state.items() if not torch.isfinite(value).all()]
    if broken:
        raise WeightsError(
            f"{len(broken)} of {len(state)} entries of the checkpoint hold NaN or infinity, as "
            f"{broken[0]}: its training had diverged, or the file is damaged; take another one"
        )


def _check_shifts(state: Mapping[str, Tensor], source: str, network: nn.Module) -> None:
    """Refuse a TSM whose shifts are not where the network's are: no entry would tell.

    The authors' R101 shifts every second block, FFN's every block.
    """
    if not isinstance(network, TSM):
        return
    shifted = {key: state[key] for key in state if re.search(r"\.net\.(conv\.)?weight$", key)}
    there = {key.removesuffix(".weight") for key in rename(shifted, source)}
    here = set(network.shifted)
    if there and there != here:
        raise WeightsError(
            f"the checkpoint shifts {len(there)} convolutions, the model {len(here)}: it belongs "
            "to another model, as tsm_r101_alternate for the R101 of TSM's authors"
        )
