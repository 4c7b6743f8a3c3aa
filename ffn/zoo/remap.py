"""Checkpoints of other implementations as ours: one pure function of key names per source.

The functions rename entries and nothing else; that the result fits is checked afterwards, in
:func:`from_foreign`, entry by entry. Sources: FFN-pytorch, the code of the paper (its TSM).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ffn.core import check_trained_frames, convert
from ffn.zoo.create import create_model
from ffn.zoo.load import load_tensors
from ffn.zoo.match import Match, match_state
from ffn.zoo.records import WeightsError

State = dict[str, Tensor]

_BRANCHES = ("4", "8", "16")  # suffixes of FFN-pytorch's L, M and H, whatever the real counts are
_BRANCH = re.compile(r"_(4|8|16)\.")


def ffn_pytorch(state: Mapping[str, Tensor], trained_frames: tuple[int, ...] | None) -> State:
    """TSM-ResNet of FFN-pytorch, flexible or plain, under our names.

    ========================================  =============================
    ``base_model.layer1.0.conv1.weight``      ``net.layer1.0.conv1.weight``
    ``….bn1_16.weight``                       ``….bn1.16.weight``
    ``….downsample_conv.weight``              ``….downsample.0.weight``
    ``….downsample_bn_16.weight``             ``….downsample.1.16.weight``
    ``….adaconv_16.weight`` (C, 1, 1, 1)      ``….conv1.site.16.weight`` (C,)
    ``new_fc.weight``                         ``net.fc.weight``
    ========================================  =============================

    Args:
        state: entries by name.
        trained_frames: what its branches L, M, H were trained at, ascending; a plain checkpoint
            needs none.

    Raises:
        ValueError: a flexible checkpoint without its three trained counts.
    """
    counts: dict[str, int] = {}
    if is_flexible(state):
        if trained_frames is None or len(trained_frames) != len(_BRANCHES):
            raise ValueError(
                f"trained_frames is {trained_frames}; this checkpoint is frame-flexible with three "
                "branches: name the three counts it was trained at, as 4 8 16"
            )
        counts = dict(zip(_BRANCHES, sorted(trained_frames), strict=True))

    ours: State = {}
    for key, tensor in state.items():
        name = re.sub(r"^base_model\.", "net.", key)
        name = re.sub(r"^(new_fc|net\.fc)\.", "net.fc.", name)
        name = name.replace(".downsample_conv.", ".downsample.0.")
        name = name.replace(".downsample_bn_", ".downsample.1_")
        name = name.replace(".adaconv_", ".conv1.site_")
        if counts:
            name = _BRANCH.sub(lambda branch: f".{counts[branch[1]]}.", name)
        ours[name] = tensor.flatten() if ".conv1.site." in name else tensor
    return ours


def is_flexible(state: Mapping[str, Tensor]) -> bool:
    """Does a state dict of FFN-pytorch have entries per frame count?"""
    return any(_BRANCH.search(key) for key in state)


SOURCES: dict[str, Callable[[Mapping[str, Tensor], tuple[int, ...] | None], State]] = {
    "ffn-pytorch": ffn_pytorch,
}


def read_foreign(path: Path) -> State:
    """The state dict in a ``.pth`` file, without the ``module.`` that (D)DP puts before its names.

    Raises:
        FileNotFoundError: no such file.
        WeightsError: the file is damaged, needs full unpickling, or holds no state dict.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    content = load_tensors(path)
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not state or not all(isinstance(value, Tensor) for value in state.values()):
        held = f"keys {', '.join(map(str, list(content)[:5]))}" if state else type(content).__name__
        raise WeightsError(f"{path} holds no state_dict of tensors, but {held}")
    return {key.removeprefix("module."): value for key, value in state.items()}


@dataclass(frozen=True)
class Converted:
    """A foreign checkpoint as a network of ours.

    Attributes:
        model: the network.
        num_classes: of its classifier.
        trained_frames: its counts, ascending; None for a plain network.
        match: what came from the checkpoint.
    """

    model: nn.Module
    num_classes: int
    trained_frames: tuple[int, ...] | None
    match: Match


def from_foreign(
    state: Mapping[str, Tensor],
    *,
    source: str,
    model: str,
    trained_frames: tuple[int, ...] | None = None,
    num_classes: int | None = None,
) -> Converted:
    """Build our network from another implementation's state dict.

    Args:
        state: from :func:`read_foreign`.
        source: one of `SOURCES`.
        model: as :func:`ffn.create_model` takes it.
        trained_frames: the counts of a flexible checkpoint; or, for a plain one, those of the
            network to build: private copies start from the plain norm, alterations at N(0, 1e-3).
        num_classes: of the network; by default the checkpoint's. Otherwise the classifier is new.

    Raises:
        ValueError: unknown source or model, or no counts for a flexible checkpoint.
        WeightsError: the checkpoint does not fit the model.
    """
    if source not in SOURCES:
        raise ValueError(f'source is "{source}"; allowed: {", ".join(SOURCES)}')
    if trained_frames is not None:
        trained_frames = check_trained_frames(trained_frames)
    ours = SOURCES[source](state, trained_frames)
    head = ours.get("net.fc.weight")
    if head is None:
        raise WeightsError("the checkpoint has no classifier new_fc: it is no TSM of FFN-pytorch")
    num_classes = num_classes or len(head)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # what the checkpoint lacks starts alike each time
        network = create_model(model, num_classes=num_classes)
        flexible = is_flexible(state)
        if flexible:
            network = convert(network, trained_frames)
        match = match_state(ours, network.state_dict()).require("the checkpoint", new_head=True)
        network.load_state_dict(match.state, strict=False)
        if trained_frames is not None and not flexible:
            network = convert(network, trained_frames)
    return Converted(network, num_classes, trained_frames, match)
