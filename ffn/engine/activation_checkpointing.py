"""Activation checkpointing of residual blocks (Chen et al., 2016, 1604.06174).

A block keeps its input alone and runs a second time in the backward, for its gradients: about a
third more time for a fraction of the memory. The second run is the first one's repetition, on the
same private modules and with the same dropout, and leaves no trace: running statistics of norms
move once. Left out: a choice of blocks, and the offloading of their inputs.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ffn.core import PrivateModules

LAYERS = (nn.modules.conv._ConvNd, nn.Linear)
LISTS = (nn.Sequential, nn.ModuleList)


def checkpoint_blocks(model: nn.Module) -> int:
    """Let every residual block of a network keep its input alone, and run again in the backward.

    State-dict keys, and what the network computes, stay. Nothing is repeated in ``eval`` or without
    gradients.

    Args:
        model: any network, frame-flexible or not; changed in place. See :func:`find_blocks`.

    Returns:
        The number of blocks.

    Raises:
        ValueError: the network has no blocks.
    """
    blocks = find_blocks(model)
    if not blocks:
        raise ValueError(
            f"{type(model).__name__} has no blocks: no child of an nn.Sequential or nn.ModuleList "
            "holds two convolutions or linear layers; train without recomputation"
        )
    for block in blocks.values():
        if not isinstance(block, CheckpointedBlock):
            block.__class__ = _recomputed(type(block))
    return len(blocks)


def find_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The residual blocks of a network, by name.

    A block is a child of an ``nn.Sequential`` or ``nn.ModuleList``, or has a ``drop_path`` as those
    of timm; it holds two or more convolutions or linear layers, and is no such list itself. One
    with more than half of its layers in blocks inside it is a stage: they are the blocks then. In
    any other, blocks inside are parts of it.
    """
    lists = (module for module in model.modules() if isinstance(module, LISTS))
    children = {id(child) for parent in lists for child in parent.children()}
    candidates = {
        name: module
        for name, module in model.named_modules()
        if name
        and (id(module) in children or hasattr(module, "drop_path"))
        and not isinstance(module, LISTS)
        and _layers(module) >= 2
    }
    return dict(_outermost("", candidates))


def _outermost(prefix: str, candidates: dict[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Candidates that lie in no other one, or in a stage alone."""
    end = ""
    for name, module in candidates.items():  # parents come before their children
        if not name.startswith(prefix) or (end and name.startswith(end)):
            continue
        end = f"{name}."
        inside = dict(_outermost(end, candidates))
        if 2 * sum(map(_layers, inside.values())) > _layers(module):
            yield from inside.items()
        else:
            yield name, module


def _layers(module: nn.Module) -> int:
    """Convolutions and linear layers; of private copies, one counts."""
    if isinstance(module, LAYERS):
        return 1
    children = list(module.children())
    return sum(map(_layers, children[:1] if isinstance(module, PrivateModules) else children))


class CheckpointedBlock:
    """The part that classes of recomputed blocks have in common, by which they are known."""


@functools.cache
def _recomputed(block: type[nn.Module]) -> type[nn.Module]:
    """The class of a block that runs again in the backward.

    A class of its own, as ``torch.nn.utils.parametrize`` makes them: a wrapper module would change
    the state-dict keys, and a ``forward`` set on the block would run the original in a deepcopy.
    """

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        run = functools.partial(block.forward, self)
        if not (self.training and torch.is_grad_enabled()):
            return run(*args, **kwargs)
        if torch.compiler.is_compiling():  # one graph has one count, and writes statistics once
            return checkpoint(run, *args, use_reentrant=False, **kwargs)
        repetition = _Repetition(self)
        return checkpoint(
            run,
            *args,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), repetition),
            **kwargs,
        )

    return type(block.__name__, (CheckpointedBlock, block), {"forward": forward})


class _Repetition:
    """Makes a block what it was in its first run, for as long as it runs again.

    Made in the first run, and entered in each backward through it.
    """

    def __init__(self, block: nn.Module) -> None:
        self.modules = list(block.modules())
        self.private = [m for m in self.modules if isinstance(m, PrivateModules)]
        values = [value for module in self.modules for value in vars(module).values()]
        # What a module keeps per thread, as the clip's length: a GPU's backward has its own thread.
        self.local = {id(v): v for v in values if isinstance(v, threading.local)}.values()
        self.first = self._state()

    def __enter__(self) -> None:
        self.by_then = self._state()
        self._set_state(self.first)
        self.buffers = [(m, dict(m._buffers)) for m in self.modules if m._buffers]
        for module, own in self.buffers:  # stand-ins take what norms write into their statistics
            module._buffers.update({k: v if v is None else v.clone() for k, v in own.items()})

    def __exit__(self, *_: object) -> None:
        for module, own in self.buffers:
            module._buffers.update(own)
        self._set_state(self.by_then)

    def _state(self) -> tuple[list[int], list[dict[str, Any]]]:
        return [m.active for m in self.private], [dict(vars(value)) for value in self.local]

    def _set_state(self, state: tuple[list[int], list[dict[str, Any]]]) -> None:
        for module, count in zip(self.private, state[0], strict=True):
            module.active = count
        for value, attributes in zip(self.local, state[1], strict=True):
            vars(value).clear()
            vars(value).update(attributes)
