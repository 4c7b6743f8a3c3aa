"""Freeze a part of a network: parameters without gradients, norms in eval mode."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable
from functools import partial

from torch import nn

from ffn.core import NORMS, FrameFlexible
from ffn.engine.optim import layer_numbers


def freeze(model: nn.Module, what: str | Iterable[str]) -> tuple[str, ...]:
    """Freeze parameters, and keep their norms in eval mode, also after ``model.train()``.

    Args:
        model: plain or frame-flexible; changed in place.
        what: parts of the network:

            - ``"head_only"``: everything except the classifier, a linear probe.
            - ``"norms"``: all normalization layers.
            - ``"stem"``, ``"blocks:2"``: the stem, and with it the first two residual blocks, in
              the order of the network's ``group_matcher``.
            - any other text is a glob pattern of names of modules or parameters, as in the state
              dict: ``"net.layer1"`` is the module and all that it contains.

    Returns:
        Names of the frozen parameters, as in the state dict.

    Raises:
        ValueError: a pattern matches nothing (the message names the closest module), or the network
            has fewer blocks or no classifier.
    """
    return _set_frozen(model, what, frozen=True)


def unfreeze(model: nn.Module, what: str | Iterable[str] = "*") -> tuple[str, ...]:
    """Undo :func:`freeze` for a part of a network, by default all; see there."""
    return _set_frozen(model, what, frozen=False)


def frozen_buffers(model: nn.Module) -> set[int]:
    """Ids of the buffers of frozen norms: statistics that nothing may update."""
    norms = [m for m in model.modules() if is_frozen(m)]
    return {id(buffer) for norm in norms for buffer in norm.buffers()}


def is_frozen(norm: nn.Module) -> bool:
    """Whether :func:`freeze` keeps this norm in eval mode; also of a copy in eval mode."""
    return "train" in norm.__dict__


def frozen_parts(model: nn.Module) -> list[str]:
    """Names of the frozen parts of a network: the outermost modules, and single parameters."""
    network, found = _network(model), []
    parts = {name: [*module.parameters()] for name, module in network.named_modules()}
    parts |= {name: [parameter] for name, parameter in network.named_parameters()}
    for name, parameters in parts.items():
        inside = name.startswith(tuple(f"{outer}." for outer in found))
        if parameters and not inside and not any(p.requires_grad for p in parameters):
            found.append(name)
    return found


def _network(model: nn.Module) -> nn.Module:
    return model.model if isinstance(model, FrameFlexible) else model


def _set_frozen(model: nn.Module, what: str | Iterable[str], *, frozen: bool) -> tuple[str, ...]:
    network = _network(model)
    selected: set[str] = set()
    for part in [what] if isinstance(what, str) else what:
        selected |= _names(network, part)
    parameters = dict(network.named_parameters())
    names = [name for name in parameters if name in selected]
    for name in names:
        parameters[name].requires_grad_(not frozen)
    for name, module in network.named_modules():
        if isinstance(module, NORMS):
            own = _own_or_outer(network, name)
            if name in selected or (own and own <= selected):
                _keep_in_eval(module) if frozen else _release(module, model.training)
    return tuple(names)


def _own_or_outer(network: nn.Module, name: str) -> set[str]:
    """Parameters of a norm; of the smallest module around it that has some, if it has none."""
    while not (own := {key for key, _ in network.get_submodule(name).named_parameters(name)}):
        if not name:
            break
        name = name.rpartition(".")[0]
    return own


def _names(network: nn.Module, part: str) -> set[str]:
    """Names of the modules and parameters of a part of a network."""
    known = [name for name, _ in (*network.named_modules(), *network.named_parameters()) if name]
    if part == "norms":
        found = [name for name, m in network.named_modules() if isinstance(m, NORMS)]
    elif part == "head_only":
        if not hasattr(network, "get_classifier"):
            raise ValueError(
                f"a {type(network).__name__} has no get_classifier(); give name patterns"
            )
        head = {id(p) for p in network.get_classifier().parameters()}
        trained = [name for name, p in network.named_parameters() if id(p) in head]
        if not trained:
            raise ValueError(f"the {type(network).__name__} has no classifier to train")
        return {n for n in known if not any(f"{one}.".startswith(f"{n}.") for one in trained)}
    elif part == "stem" or part.startswith("blocks:"):
        return _first_blocks(network, part.removeprefix("blocks:"))
    else:
        found = [name for name in known if fnmatch.fnmatchcase(name, part)]
        if not found:
            close = difflib.get_close_matches(part, known, n=3) or known[:3]
            raise ValueError(f"{part!r} matches no module; did you mean {', '.join(close)}?")
    inside = tuple(f"{name}." for name in found)
    return {*found, *(name for name in known if name.startswith(inside))}


def _first_blocks(network: nn.Module, count: str) -> set[str]:
    """Names of the parameters of the stem and the first blocks."""
    numbers = layer_numbers(network)
    blocks = max(numbers.values()) - 1  # the stem is layer 0, the head the last one
    last = "0" if count == "stem" else count
    if not last.isdecimal() or int(last) > blocks:
        raise ValueError(
            f"blocks:{count}; a {type(network).__name__} has {blocks} blocks. Give blocks:1 to "
            f"blocks:{blocks}, stem, or name patterns"
        )
    return {name for name, number in numbers.items() if number <= int(last)}


def _keep_in_eval(norm: nn.Module) -> None:
    # An attribute of the object: `model.train()` calls it. A partial can be copied and pickled.
    norm.train = partial(_eval, norm)
    norm.eval()


def _release(norm: nn.Module, training: bool) -> None:
    norm.__dict__.pop("train", None)
    norm.train(training)


def _eval(norm: nn.Module, mode: bool = True) -> nn.Module:
    """``nn.Module.train`` of a frozen norm: it stays in eval mode."""
    return nn.Module.train(norm, False)
