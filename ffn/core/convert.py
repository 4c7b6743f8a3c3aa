"""Convert a plain network to a frame-flexible one; extract a sub-network as a plain one."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ffn.core.flexible import FrameFlexible
from ffn.core.private import PrivateModules, WeightAlteration
from ffn.core.selection import frame_ranges

# _NormBase: BatchNorm, SyncBatchNorm and InstanceNorm of every rank.
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

Selection = str | Callable[[str, nn.Module], bool]


@dataclass(frozen=True)
class ConversionReport:
    """Result of a conversion: names of private modules and altered places, parameter counts."""

    ranges: dict[int, tuple[int, int]]  # by trained count
    private: tuple[str, ...]
    altered: tuple[str, ...]
    parameters_before: int
    parameters_after: int

    def __str__(self) -> str:
        added = self.parameters_after - self.parameters_before
        counts = [f"{a}-{b}" if a < b else f"{a}" for a, b in self.ranges.values()]
        return (
            f"frame-flexible at {', '.join(counts)} frames: "
            f"{len(self.private)} private modules and {len(self.altered)} weight alterations per "
            f"count, {added:,} parameters added to {self.parameters_before:,} "
            f"({100 * added / max(1, self.parameters_before):.2f} %)"
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

    The given model does not change: a copy of it is converted. Every private module starts with the
    parameters and statistics of the original. ``.report`` of the result describes the conversion.

    Args:
        model: any network that takes one clip of any T.
        trained_frames: the frame counts of training, e.g. (4, 8, 16); for training at any count
            with the range of each, e.g. {4: (2, 5), 8: (6, 11), 16: (12, 20)}.
        private: modules private to each count: "norms" (the paper), "none", "all" (every module
            with parameters: nothing is shared), or a function of a module's name and the module.
        alter: "sites" (those of the backbone), "all" (also its optional sites), "none"; or glob
            patterns as ``["layer*.conv1"]``: inputs of matching convolutions and linear layers.
        frame_dim: the dimension of T in a clip, 2 in (B, C, T, H, W).

    Raises:
        ValueError: the model is converted already, or a selection matches nothing usable.
    """
    if any(isinstance(module, (FrameFlexible, PrivateModules)) for module in model.modules()):
        raise ValueError("the model is frame-flexible already; convert the plain network")
    ranges = frame_ranges(trained_frames)
    before = sum(p.numel() for p in model.parameters())
    model = copy.deepcopy(model)

    chosen = _select_private(model, private)
    altered = _put_alterations(model, alter, ranges, chosen)
    copies = {id(m): {n: copy.deepcopy(m) for n in ranges} for m in chosen.values()}
    _replace(model, {key: PrivateModules(modules) for key, modules in copies.items()})
    after = sum(p.numel() for p in model.parameters())
    report = ConversionReport(ranges, tuple(chosen), tuple(altered), before, after)
    flexible = FrameFlexible(model, ranges, frame_dim=frame_dim, report=report)
    return flexible.train(model.training)


def extract(model: FrameFlexible, frames: int) -> nn.Module:
    """Extract the sub-network of one trained count as a plain network.

    Its outputs equal those of the flexible network with ``active=frames`` bit for bit. It is a copy
    without private modules and runs clips of any length. Raises ValueError if the model is not
    frame-flexible or ``frames`` is not trained.
    """
    if not isinstance(model, FrameFlexible):
        raise ValueError(f"model is a {type(model).__name__}, not FrameFlexible; unwrap DDP first")
    if frames not in model.trained_frames:
        raise ValueError(
            f"no sub-network for {frames} frames; trained are {model.trained_frames}. Extract the "
            "nearest one: it runs any number of frames."
        )
    network = copy.deepcopy(model.model)
    private = [module for module in network.modules() if isinstance(module, PrivateModules)]
    _replace(network, {id(module): module[str(frames)] for module in private})
    return network


def _select_private(model: nn.Module, private: Selection) -> dict[str, nn.Module]:
    """Modules to make private, by name; none is inside another."""
    if private == "none":
        return {}
    if isinstance(private, str) and private not in ("norms", "all"):
        raise ValueError(f'private is "{private}"; allowed: "norms", "none", "all", or a function')
    types = nn.Module if private == "all" else NORMS
    rule = private if callable(private) else lambda _, m: isinstance(m, types) and m._parameters

    chosen: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if name and not _is_inside(name, chosen) and rule(name, module):
            chosen[name] = module
    if not chosen:
        raise ValueError(
            f"private={private!r} selects no module of {type(model).__name__}; name its "
            'normalisation layers with a function, or pass private="none"'
        )
    return chosen


def _put_alterations(
    model: nn.Module, alter: str | Sequence[str], counts: Iterable[int], private: Iterable[str]
) -> list[str]:
    """Put alterations on sites or on the inputs of named modules; return their names."""
    if isinstance(alter, str) and alter not in ("sites", "all", "none"):
        raise ValueError(f'alter is "{alter}"; allowed: "sites", "all", "none", or name patterns')
    device = next((p.device for p in model.parameters()), None)

    def alterations(channels: int, dim: int) -> PrivateModules:
        return PrivateModules({n: WeightAlteration(channels, dim) for n in counts}).to(device)

    # Inside a private module, no alteration is needed.
    free = {n: m for n, m in model.named_modules() if n and not _is_inside(n, private)}
    if isinstance(alter, str):
        sites = {n: m for n, m in model.named_modules() if getattr(m, "is_alteration_site", False)}
        if alter != "none" and not sites:
            raise ValueError(f'{type(model).__name__} marks no site; name layers or alter="none"')
        wanted = {"sites": [False], "all": [False, True], "none": []}[alter]
        marked = {n: m for n, m in sites.items() if n in free and m.optional in wanted}
        _replace(model, {id(m): alterations(m.channels, m.channel_dim) for m in marked.values()})
        return list(marked)

    names = [n for n in free if any(fnmatch.fnmatchcase(n, pattern) for pattern in alter)]
    if not names:
        raise ValueError(f"alter={list(alter)} matches none of {', '.join(list(free)[:3])}, …")
    for name in names:
        free[name].alteration = alterations(*_input_channels(name, free[name]))
        free[name].register_forward_pre_hook(_alter_input)
    return names


def _is_inside(name: str, outer: Iterable[str]) -> bool:
    return any(name == other or name.startswith(f"{other}.") for other in outer)


def _input_channels(name: str, module: nn.Module) -> tuple[int, int]:
    """Number of input channels of a module, and their dimension."""
    if isinstance(module, nn.Linear):
        return module.in_features, -1
    if isinstance(getattr(module, "in_channels", None), int):
        return module.in_channels, 1
    raise ValueError(
        f"{name} is a {type(module).__name__}; name convolutions or linear layers in alter="
    )


def _alter_input(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return module.alteration(args[0]), *args[1:]


def _replace(model: nn.Module, by: dict[int, nn.Module]) -> None:
    """Replace submodules, given by id, in every parent."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if id(child) in by:
                parent._modules[name] = by[id(child)]
