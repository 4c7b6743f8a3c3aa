"""Freeze a part of a network: parameters without gradients, norms in eval mode."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable
from functools import partial

from torch import nn

from ffn.core import NORMS, FrameFlexible


def freeze(model: nn.Module, what: str | Iterable[str]) -> tuple[str, ...]:
    """Freeze parameters, and keep their norms in eval mode, also after ``model.train()``.

    Args:
        model: plain or frame-flexible; changed in place.
        what: parts of the network:

            - ``"head_only"``: everything except the classifier, a linear probe.
            - ``"norms"``: all normalization layers.
            - any other text is a glob pattern of names of modules or parameters, as in the state
              dict: ``"net.layer1"`` is the module and all that it contains.

    Returns:
        Names of the frozen parameters, as in the state dict.

    Raises:
        ValueError: a pattern matches nothing (the message names the closest module), or the network
            has no classifier.
    """
    return _set_frozen(model, what, frozen=True)


def unfreeze(model: nn.Module, what: str | Iterable[str] = "*") -> tuple[str, ...]:
    """Undo :func:`freeze` for a part of a network, by default all; see there."""
    return _set_frozen(model, what, frozen=False)


def frozen_buffers(model: nn.Module) -> set[int]:
    """Ids of the buffers of frozen norms: statistics that nothing may update."""
    norms = [m for m in model.modules() if "train" in m.__dict__]  # of `_set_frozen`
    return {id(buffer) for norm in norms for buffer in norm.buffers()}


def _set_frozen(model: nn.Module, what: str | Iterable[str], *, frozen: bool) -> tuple[str, ...]:
    network = model.model if isinstance(model, FrameFlexible) else model
    parts = [what] if isinstance(what, str) else what
    selected = set().union(*(_names(network, part) for part in parts))
    names = []
    for name, parameter in network.named_parameters():
        if name in selected:
            parameter.requires_grad_(not frozen)
            names.append(name)
    owned = {name: dict(m.named_parameters(name)).keys() for name, m in network.named_modules()}
    whole = tuple(f"{name}." for name, own in owned.items() if own and own <= selected)
    for name, module in network.named_modules():
        if isinstance(module, NORMS) and (name in selected or f"{name}.".startswith(whole)):
            module.__dict__.pop("train", None)
            if frozen:  # `model.train()` calls it; a partial can be copied and pickled
                module.train = partial(_eval, module)
            module.train(model.training)
    return tuple(names)


def _names(network: nn.Module, part: str) -> set[str]:
    """Names of the modules and parameters of a part of a network."""
    known = [name for name, _ in (*network.named_modules(), *network.named_parameters()) if name]
    if part == "head_only":
        head = _head(network)
        return {n for n in known if not any(f"{one}.".startswith(f"{n}.") for one in head)}
    if part == "norms":
        found = [name for name, m in network.named_modules() if isinstance(m, NORMS)]
    else:
        found = fnmatch.filter(known, part)
        if not found:
            close = difflib.get_close_matches(part, known, n=3) or known[:3]
            raise ValueError(f"{part!r} matches no module; did you mean {', '.join(close)}?")
    inside = tuple(f"{name}." for name in found)
    return {*found, *(name for name in known if name.startswith(inside))}


def _head(network: nn.Module) -> list[str]:
    """Names of the parameters of the classifier."""
    classifier = network.get_classifier() if hasattr(network, "get_classifier") else nn.Identity()
    own = {id(parameter) for parameter in classifier.parameters()}
    if not own:
        raise ValueError(f"a {type(network).__name__} has no classifier; give name patterns")
    return [name for name, parameter in network.named_parameters() if id(parameter) in own]


def _eval(norm: nn.Module, mode: bool = True) -> nn.Module:
    """``nn.Module.train`` of a frozen norm: it stays in eval mode."""
    return nn.Module.train(norm, False)
