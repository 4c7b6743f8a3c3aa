"""Convert a plain network to a frame-flexible one; extract a sub-network as a plain one."""

from __future__ import annotations

import copy
import fnmatch
import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ffn.core.flexible import FrameFlexible
from ffn.core.private import PrivateModules, WeightAlteration
from ffn.frame_counts import frame_ranges

# _NormBase: BatchNorm, SyncBatchNorm and InstanceNorm of every rank.
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
Selection = str | Callable[[str, nn.Module], bool]


@dataclass(frozen=True)
class ConversionReport:
    """Result of a conversion: ranges by count, private modules, altered places, parameters.

    ``idle`` has the private modules and alterations that did not run with the example clip.
    """

    ranges: dict[int, tuple[int, int]]
    private: tuple[str, ...]
    altered: tuple[str, ...]
    parameters_before: int
    parameters_after: int
    idle: tuple[str, ...] = ()

    def __str__(self) -> str:
        before, added = self.parameters_before, self.parameters_after - self.parameters_before
        counts = ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in self.ranges.values())
        modules = f"{len(self.private)} private modules and {len(self.altered)} weight alterations"
        share = f"{added:,} parameters added to {before:,} ({100 * added / max(1, before):.2f} %)"
        return f"frame-flexible at {counts} frames: {modules} per count, {share}"


def convert(
    model: nn.Module,
    trained_frames: Iterable[int],
    *,
    private: Selection = "norms",
    alter: str | Sequence[str] = "sites",
    interpolate: bool = False,
    frame_dim: int = 2,
    example: Tensor | None = None,
) -> FrameFlexible:
    """Make a frame-flexible copy of a network: shared weights, private norms, weight alterations.

    Private modules start with the state of the original. ``.report`` describes the conversion.

    Args:
        model: any network that takes one clip of any T.
        trained_frames: the frame counts of training, e.g. (4, 8, 16), or the range of each count,
            e.g. {4: (2, 5), 8: (6, 11), 16: (12, 20)}.
        private: modules private to each count: "norms" (the paper), "none", "all" (every module
            with parameters: nothing is shared), names or patterns with commas, as "norms,head", or
            a function of a module's name and the module.
        alter: "sites" (those of the backbone), "all" (also its optional sites), "none"; or glob
            patterns as ``["layer*.conv1"]``: inputs of matching convolutions and linear layers.
        interpolate: in eval mode, counts between two trained ones, or between their ranges, have
            their own sub-networks: private parameters and statistics are interpolated linearly in
            the count (not "all").
        frame_dim: the dimension of T in a clip, 2 in (B, C, T, H, W).
        example: a clip to run once, in eval mode; warns of private modules and alterations that do
            not run, as those of a norm called through a Python list: they would not learn, unless
            training runs them, as it does an auxiliary head.

    Raises ValueError if the model is converted already, or a selection matches nothing usable.
    """
    if any(isinstance(module, (FrameFlexible, PrivateModules)) for module in model.modules()):
        raise ValueError("the model is frame-flexible already; convert the plain network")
    ranges = frame_ranges(trained_frames)
    original, model = model, _copied(model)
    chosen = _select_private(model, private)
    altered = _put_alterations(model, alter, ranges, chosen)
    replace_all(model, {k: PrivateModules(m) for k, m in _copies(chosen, model, ranges).items()})
    sizes = [sum(p.numel() for p in network.parameters()) for network in (original, model)]
    report = ConversionReport(ranges, tuple(chosen), tuple(altered), *sizes)
    options = {"interpolate": interpolate, "frame_dim": frame_dim, "report": report}
    flexible = FrameFlexible(model, ranges, **options).train(model.training)
    if example is not None and (idle := _idle(flexible, example)):
        flexible.report = replace(report, idle=idle)
        shown = "did not run with the example clip, and would not learn unless training runs them: "
        shown += ", ".join(idle[:5])
        warnings.warn(f"{len(idle)} private modules {shown}{', …' * bool(idle[5:])}", stacklevel=2)
    return flexible


def extract(model: FrameFlexible, frames: int) -> nn.Module:
    """Extract the sub-network of one count as a plain network, for clips of any length.

    It is a copy. Its outputs are those of ``model(clip, active=frames)`` bit for bit. Raises
    ValueError if the model is not frame-flexible or has no such sub-network.
    """
    if not isinstance(model, FrameFlexible):
        raise ValueError(f"model is a {type(model).__name__}, not FrameFlexible; unwrap DDP first")
    model = _copied(model)
    model.activate(frames)
    private = [module for module in model.modules() if isinstance(module, PrivateModules)]
    count = frames if frames in model.trained_frames else model.trained_frames[0]
    for module in private if count != frames else ():  # the first copy takes interpolated values
        module[str(count)].load_state_dict(module.active_module().state_dict())
    replace_all(model.model, {id(module): module[str(count)] for module in private})
    return model.model


def _copied(model: nn.Module) -> nn.Module:
    """A deep copy, also of a network that keeps computed tensors, as old weight norms do."""
    kept = tree_leaves([vars(module) for module in model.modules()])
    computed = [x for x in kept if isinstance(x, Tensor) and not x.is_leaf]
    return copy.deepcopy(model, {id(x): x.detach().clone() for x in computed})


def _select_private(model: nn.Module, private: Selection) -> dict[str, nn.Module]:
    """Modules to make private, by name; none is inside another."""
    if private == "none":
        return {}
    kinds = {"norms": NORMS, "all": nn.Module}
    names = [name for name, _ in model.named_modules() if name]
    words = [] if callable(private) else [word.strip() for word in private.split(",")]
    types = tuple(kinds[word] for word in words if word in kinds)
    matching = {w: fnmatch.filter(names, w) for w in words if w not in kinds}
    if idle := [word for word, found in matching.items() if not found]:
        raise ValueError(f"{idle[0]} in private matches none of {', '.join(names[:3])}, …")
    named = {name for found in matching.values() for name in found}

    def rule(name: str, module: nn.Module) -> bool:
        return name in named or bool(isinstance(module, types) and module._parameters)

    rule = private if callable(private) else rule
    chosen: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if name and not _is_inside(name, chosen) and rule(name, module):
            chosen[name] = module
    if not chosen:
        remedy = 'give "norms", "all", "none", or names of modules'
        raise ValueError(f"private={private!r} selects no module of {model._get_name()}; {remedy}")
    return chosen


def _copies(
    chosen: dict[str, nn.Module], model: nn.Module, counts: Iterable[int]
) -> dict[int, dict[int, nn.Module]]:
    """Copies of the private modules per count, by id; tied parameters stay tied within a count."""
    inside = {id(p): f"{n}.{k}" for n, m in chosen.items() for k, p in m.named_parameters()}
    owned = {id(part) for module in chosen.values() for part in module.modules()}
    for name, module in model.named_modules():
        tied = [key for key, p in module._parameters.items() if id(p) in inside]
        if tied and id(module) not in owned:
            shared, own = f"{name}.{tied[0]}".strip("."), inside[id(module._parameters[tied[0]])]
            remedy = "which all counts share; make both private, or untie them"
            raise ValueError(f"{own} is the same parameter as {shared}, {remedy}")
    memos: dict[int, dict] = {n: {} for n in counts}
    return {id(m): {n: copy.deepcopy(m, memos[n]) for n in memos} for m in chosen.values()}


def _put_alterations(
    model: nn.Module, alter: str | Sequence[str], counts: Iterable[int], private: Iterable[str]
) -> list[str]:
    """Put alterations on sites or on the inputs of named modules; return their names."""
    wanted = {"sites": [False], "all": [False, True], "none": []}  # optional or not
    if isinstance(alter, str) and alter not in wanted:
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
        marked = {n: m for n, m in sites.items() if n in free and m.optional in wanted[alter]}
        replace_all(model, {id(m): alterations(m.channels, m.channel_dim) for m in marked.values()})
        return list(marked)
    matching = {p: [n for n in free if fnmatch.fnmatchcase(n, p)] for p in alter}
    idle = [pattern for pattern, names in matching.items() if not names]
    if idle or not matching:
        wrong = f"{', '.join(idle)} in alter matches none" if idle else "alter=[] matches none"
        raise ValueError(f"{wrong} of {', '.join(list(free)[:3])}, …")
    names = [name for name in free if any(name in found for found in matching.values())]
    for name in names:
        free[name].alteration = alterations(*_input_channels(name, free[name]))
        free[name].register_forward_pre_hook(alter_input, with_kwargs=True)
    return names


def _idle(flexible: FrameFlexible, example: Tensor) -> tuple[str, ...]:
    """Names of private sets that a forward in eval mode does not run."""
    flexible, ran = copy.deepcopy(flexible).eval(), set()
    sets = {n: m for n, m in flexible.model.named_modules() if isinstance(m, PrivateModules)}
    for name, module in sets.items():  # to run it, or to read its attributes

        def active_module(name: str = name, found: Callable = module.active_module) -> nn.Module:
            ran.add(name)
            return found()

        module.active_module = active_module
    flexible(example)
    return tuple(name for name in sets if name not in ran)


def _is_inside(name: str, outer: Iterable[str]) -> bool:
    return any(name == other or name.startswith(f"{other}.") for other in outer)


def _input_channels(name: str, module: nn.Module) -> tuple[int, int]:
    """Number of input channels of a module, and their dimension."""
    if isinstance(module, nn.Linear):
        return module.in_features, -1
    if isinstance(getattr(module, "in_channels", None), int):
        return module.in_channels, 1
    raise ValueError(f"{name} is a {type(module).__name__}; name convolutions or linear layers")


def alter_input(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict[str, Any]]:
    """Alter the first argument: the pre-hook of layers that ``alter`` names."""
    if args:
        return (module.alteration(args[0]), *args[1:]), kwargs
    name = next(iter(inspect.signature(module.forward).parameters))
    return args, {**kwargs, name: module.alteration(kwargs[name])}


def replace_all(model: nn.Module, by: dict[int, nn.Module]) -> None:
    """Replace submodules, given by id, in every parent."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if id(child) in by:
                parent._modules[name] = by[id(child)]
