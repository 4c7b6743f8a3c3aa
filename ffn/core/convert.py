"""plain network -> frame-flexible network, and back: one sub-network as a plain module again."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ffn.core.flexible import FrameFlexible
from ffn.core.private import PrivateModules, WeightAlteration
from ffn.core.selection import check_trained_frames

# _NormBase: BatchNorm, SyncBatchNorm and InstanceNorm of every rank.
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

Selection = str | Callable[[str, nn.Module], bool]


@dataclass(frozen=True)
class ConversionReport:
    """What a conversion did: names of private modules and of altered places, parameters added."""

    trained_frames: tuple[int, ...]
    private: tuple[str, ...]
    altered: tuple[str, ...]
    parameters_before: int
    parameters_after: int

    def __str__(self) -> str:
        added = self.parameters_after - self.parameters_before
        return (
            f"frame-flexible at {', '.join(map(str, self.trained_frames))} frames: "
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

    The given model stays as it is; the result is built from a copy, and every private module starts
    from the original's parameters and statistics. ``.report`` of the result tells what was done.

    Args:
        model: any network that takes one clip of any T.
        trained_frames: the counts it will be trained at, as (4, 8, 16).
        private: what each count owns: "norms" (the paper), "none", "all" (every module with
            parameters: nothing is shared), or a function of a module's name and the module.
        alter: "sites" where the backbone marks one, "all" at its optional ones too, "none"; or glob
            patterns as ``["layer*.conv1"]``: inputs of matching convolutions and linear layers.
        frame_dim: the dimension of the clip that holds T: 2 in (B, C, T, H, W).

    Raises:
        ValueError: the model is converted already, a selection matches nothing or what it cannot.
    """
    if any(isinstance(module, (FrameFlexible, PrivateModules)) for module in model.modules()):
        raise ValueError("the model is frame-flexible already; convert the plain network")
    trained_frames = check_trained_frames(trained_frames)
    before = sum(p.numel() for p in model.parameters())
    model = copy.deepcopy(model)

    chosen = _select_private(model, private)
    altered = _put_alterations(model, alter, trained_frames, chosen)
    copies = {id(m): {n: copy.deepcopy(m) for n in trained_frames} for m in chosen.values()}
    _replace(model, {key: PrivateModules(modules) for key, modules in copies.items()})
    after = sum(p.numel() for p in model.parameters())
    report = ConversionReport(trained_frames, tuple(chosen), tuple(altered), before, after)
    flexible = FrameFlexible(model, trained_frames, frame_dim=frame_dim, report=report)
    return flexible.train(model.training)


def extract(model: FrameFlexible, frames: int) -> nn.Module:
    """Take the sub-network of one trained count out, as a plain network of its own.

    Its outputs equal the flexible network's with ``active=frames``, bit for bit. It shares no
    memory with the flexible network, has no switch, and runs clips of any length. A ValueError
    says that the model is not frame-flexible, or that ``frames`` was not trained.
    """
    if not isinstance(model, FrameFlexible):
        got = type(model).__name__
        raise ValueError(f"extract takes a FrameFlexible network, not {got}; unwrap DDP first")
    if frames not in model.trained_frames:
        raise ValueError(
            f"no sub-network for {frames} frames; trained are {model.trained_frames}. The one you "
            "extract runs any number of frames: take the trained count nearest to yours."
        )
    network = copy.deepcopy(model.model)
    private = [module for module in network.modules() if isinstance(module, PrivateModules)]
    _replace(network, {id(module): module[str(frames)] for module in private})
    return network


def _select_private(model: nn.Module, private: Selection) -> dict[str, nn.Module]:
    """Modules to be owned per count, by name; none lies inside another."""
    rules: dict[str, Callable[[str, nn.Module], bool]] = {
        "norms": lambda name, module: isinstance(module, NORMS),
        "all": lambda name, module: isinstance(module, NORMS) or len(module._parameters) > 0,
    }
    if private == "none":
        return {}
    if isinstance(private, str) and private not in rules:
        raise ValueError(f'private is "{private}"; allowed: "norms", "none", "all", or a function')
    rule = rules[private] if isinstance(private, str) else private

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
    model: nn.Module, alter: str | Sequence[str], counts: tuple[int, ...], private: Iterable[str]
) -> list[str]:
    """Put alterations on marked sites or on the inputs of named modules; return where."""
    if isinstance(alter, str) and alter not in ("sites", "all", "none"):
        raise ValueError(f'alter is "{alter}"; allowed: "sites", "all", "none", or name patterns')
    device = next((p.device for p in model.parameters()), None)

    def alterations(channels: int, dim: int) -> PrivateModules:
        return PrivateModules({n: WeightAlteration(channels, dim) for n in counts}).to(device)

    # A module that is private as a whole needs no alteration inside.
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
        like = f"{type(model).__name__}; names look like {', '.join(list(free)[:3])}"
        raise ValueError(f"alter={list(alter)} matches no module of {like}")
    for name in names:
        free[name].alteration = alterations(*_input_channels(name, free[name]))
        free[name].register_forward_pre_hook(_alter_input)
    return names


def _is_inside(name: str, outer: Iterable[str]) -> bool:
    return any(name == other or name.startswith(f"{other}.") for other in outer)


def _input_channels(name: str, module: nn.Module) -> tuple[int, int]:
    """Channels of a module's input, and the dimension that holds them."""
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
        for name, child in parent._modules.items():
            if id(child) in by:
                parent._modules[name] = by[id(child)]
