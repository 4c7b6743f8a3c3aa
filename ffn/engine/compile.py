"""``torch.compile`` for networks that train at several frame counts: one graph per count.

The graph of a count is specialised to its private modules and number of frames. If the number of
frames of a view changes from step to step, one graph is for all lengths from 3 frames on; clips of
1 or 2 frames have graphs of their own. Not compiled: losses, optimizers and validation, which would
need a graph for each clip length and mode.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from ffn.core import FrameFlexible


def compile_network(model: nn.Module, *, lengths_change: bool = False) -> None:
    """Compile a network for training; each graph is compiled at the first clip of its length.

    State-dict keys do not change. Deepcopies and extracted networks are not compiled.

    Args:
        model: changed in place; frame-flexible, for clips of the trained lengths, or plain, for
            clips of a few lengths. Each batch size needs its own graph, too.
        lengths_change: the number of frames of a view changes from step to step; its batches pass
            :func:`with_changing_lengths`.

    Raises:
        RuntimeError: in training, of torch: there is no C++ compiler for a CPU, the network cannot
            be one graph, or there are eight graphs for other lengths or sizes than the trained
            ones; see :func:`eager`.
    """
    flexible = isinstance(model, FrameFlexible)
    graphs = 3 if lengths_change else 1  # of 1, 2, and more frames
    _allow_graphs(graphs * (len(model.trained_frames) if flexible else 1))
    (model.model if flexible else model).compile(dynamic=False, fullgraph=True)


def with_changing_lengths(
    prepare: Callable[..., dict[str, Any]],
) -> Callable[..., dict[str, Any]]:
    """A function that prepares a batch, for a compiled network whose clips change in length."""

    def call(*args: Any, **kwargs: Any) -> dict[str, Any]:
        batch = prepare(*args, **kwargs)
        for clip in batch["clips"].values():
            torch._dynamo.maybe_mark_dynamic(clip, 2)  # (B, C, T, H, W)
        return batch

    return call


def eager() -> AbstractContextManager[None]:
    """Run compiled networks eagerly inside this context, as for the many lengths of validation."""
    return torch.compiler.set_stance("force_eager")


def _allow_graphs(number: int) -> None:
    """Raise torch's limit of graphs, which holds for all networks of a class together."""
    config = torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # 2.6
    setattr(config, name, getattr(config, name) + number)
