"""plain network -> frame-flexible network, and back: one sub-network as a plain module again."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ffn.core.alteration import WeightAlteration
from ffn.core.flexible import FrameFlexible
from ffn.core.private import PrivateModules
from ffn.core.selection import check_trained_frames

NORMS = (
    nn.modules.batchnorm._NormBase,  # BatchNorm, SyncBatchNorm and InstanceNorm of every rank
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)

Selection = str | Callable[[str, nn.Module], bool]


@dataclass(frozen=True)
class ConversionReport:
    """What a conversion did.

    Attributes:
        trained_frames: the frame counts.
        private: names of the modules that each count owns a copy of.
        altered: names of the places with a weight alteration.
        parameters_before: parameters of the plain network.
        parameters_after: parameters of the flexible one, all counts together.
    """

    trained_frames: tuple[int, ...]
    private: tuple[str, ...]
    altered: tuple[str, ...]
    parameters_before: int
    parameters_after: int

    @property
    def added(self) -> int:
        """Parameters that the conversion added."""
        return self.parameters_after - self.parameters_before

    def __str__(self) -> str:
        percent = 100 * self.added / max(1, self.parameters_before)
        return (
            f"frame-flexible at {', '.join(map(str, self.trained_frames))} frames: "
            f"{len(self.private)} private modules, {len(self.altered)} weight alterations per count, "
            f"{self.added:,} parameters added to {self.parameters_before:,} ({percent:.2f} %)"
        )


def convert(
    model: nn.Module,
    trained_frames: Iterable[int],
    *,
    private: Selection = "norms",
    alter: str | Sequence[str] = "sites",
    frame_dim: int = 2,
) -> FrameFlexible:
    """Make a network frame-flexible: shared weights, private norms, weight alterations.

    The given model stays as it is; the result is built from a copy. Every private copy starts from
    the original's affine parameters and statistics.

    Args:
        model: any network that takes one clip of any T.
        trained_frames: the counts it will be trained at, as (4, 8, 16).
        private: what each count owns: "norms" (the paper), "none", "all" (every module with
            parameters: nothing is shared), or a function of a module's name and the module.
        alter: "sites" alters at each alteration site that the backbone marks, "none" nowhere; or
            glob patterns of module names, as ``["layer*.conv1"]``: the input of each matching
            convolution or linear layer is altered.
        frame_dim: the dimension of the clip that holds T: 2 in (B, C, T, H, W).

    Returns:
        The flexible network; ``.report`` tells what became private and how much was added.

    Raises:
        ValueError: the model is converted already, a selection matches nothing, or a matched module
            has no channels that could be altered.
    """
    if any(isinstance(module, (FrameFlexible, PrivateModules)) for module in model.modules()):
        raise ValueError(
            "the model is frame-flexible already; convert the plain network, or first take one "
            "sub-network out with ffn.extract(model, frames=...)"
        )
    trained_frames = check_trained_frames(trained_frames)
    before = _count_parameters(model)
    model = copy.deepcopy(model)

    chosen = _select_private(model, private)
    altered = _put_alterations(model, alter, trained_frames, inside=chosen)
    _replace(
        model,
        {
            id(module): PrivateModules({n: copy.deepcopy(module) for n in trained_frames})
            for module in chosen.values()
        },
    )

    report = ConversionReport(
        trained_frames, tuple(chosen), tuple(altered), before, _count_parameters(model)
    )
    return FrameFlexible(model, trained_frames, frame_dim=frame_dim, report=report).train(
        model.training
    )


def extract(model: FrameFlexible, frames: int) -> nn.Module:
    """Take the sub-network of one trained count out, as a plain network of its own.

    Its outputs equal the flexible network's with ``active=frames``, bit for bit. It shares no memory
    with the flexible network, has no switch, and runs clips of any length.

    Args:
        model: a frame-flexible network; a wrapped one (DDP, EMA) is to be unwrapped first.
        frames: one of the trained frame counts.

    Raises:
        ValueError: the model is not frame-flexible, or the count was not trained.
    """
    if not isinstance(model, FrameFlexible):
        raise ValueError(f"extract takes a FrameFlexible network, not {type(model).__name__}")
    if frames not in model.trained_frames:
        raise ValueError(
            f"no sub-network for {frames} frames; trained are {model.trained_frames}. The extracted "
            "network runs any number of frames: take the trained count nearest to yours."
        )
    network = copy.deepcopy(model.model)
    private = [module for module in network.modules() if isinstance(module, PrivateModules)]
    if isinstance(network, PrivateModules):
        return network[str(frames)]
    _replace(network, {id(module): module[str(frames)] for module in private})
    return network


def _select_private(model: nn.Module, private: Selection) -> dict[str, nn.Module]:
    """Modules to be owned per count, by name; none lies inside another."""
    rules: dict[str, Callable[[str, nn.Module], bool]] = {
        "norms": lambda name, module: isinstance(module, NORMS),
        "all": lambda name, module: any(True for _ in module.parameters(recurse=False)),
    }
    if private == "none":
        return {}
    if isinstance(private, str) and private not in rules:
        raise ValueError(f'private is "{private}"; allowed: "norms", "none", "all", or a function')
    rule = rules[private] if isinstance(private, str) else private

    chosen: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in chosen)
        if name and not inside and rule(name, module):
            chosen[name] = module
    if not chosen:
        raise ValueError(
            f"private={private!r} selects no module of {type(model).__name__}; name its "
            'normalisation layers with a function, or pass private="none"'
        )
    return chosen


def _put_alterations(
    model: nn.Module,
    alter: str | Sequence[str],
    trained_frames: tuple[int, ...],
    inside: dict[str, nn.Module],
) -> list[str]:
    """Put alterations on marked sites or on the inputs of named modules; return where."""
    if alter == "none":
        return []
    if isinstance(alter, str) and alter != "sites":
        raise ValueError(f'alter is "{alter}"; allowed: "sites", "none", or a list of name patterns')

    def private_alterations(channels: int, channel_dim: int) -> PrivateModules:
        return PrivateModules({n: WeightAlteration(channels, channel_dim) for n in trained_frames})

    # A module that is private as a whole needs no alteration inside.
    free = {
        name: module
        for name, module in model.named_modules()
        if not any(name == outer or name.startswith(f"{outer}.") for outer in inside)
    }
    if alter == "sites":
        sites = {n: m for n, m in free.items() if getattr(m, "is_alteration_site", False)}
        _replace(
            model,
            {id(m): private_alterations(m.channels, m.channel_dim) for m in sites.values()},
        )
        return list(sites)

    names = [n for n in free if n and any(fnmatch.fnmatchcase(n, pattern) for pattern in alter)]
    if not names:
        raise ValueError(
            f"alter={list(alter)} matches no module of {type(model).__name__}; names look like "
            f"{', '.join(list(free)[1:4])}"
        )
    for name in names:
        module = free[name]
        channels, channel_dim = _input_channels(name, module)
        module.alteration = private_alterations(channels, channel_dim)
        module.register_forward_pre_hook(_alter_input)
    return names


def _input_channels(name: str, module: nn.Module) -> tuple[int, int]:
    if isinstance(module, nn.Linear):
        return module.in_features, -1
    if isinstance(getattr(module, "in_channels", None), int):
        return module.in_channels, 1
    raise ValueError(
        f"{name} is a {type(module).__name__}: how many channels its input has is not known. "
        "Name convolutions or linear layers in alter=."
    )


def _alter_input(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return module.alteration(args[0]), *args[1:]


def _replace(model: nn.Module, by: dict[int, nn.Module]) -> None:
    """Replace submodules, given by identity, wherever they are used."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if id(child) in by:
                setattr(parent, name, by[id(child)])


def _count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
