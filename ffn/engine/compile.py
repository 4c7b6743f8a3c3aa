"""``torch.compile`` for networks that train at several frame counts: one graph per count.

The graph of a count has its private modules and its number of frames built in. Left out: compiled
losses, optimisers and validation, which would add a graph for each length and mode.
"""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractContextManager

import torch
from torch import nn

from ffn.core import FrameFlexible

COMPILERS = ("g++", "clang++")


def compile_network(model: nn.Module) -> None:
    """Compile a network for training; the graphs are made when clips of each length first come.

    State-dict keys stay. A deepcopy of the network, and one taken out of it, is not compiled.

    Args:
        model: changed in place; frame-flexible, for clips of the trained lengths, or plain, for
            clips of one length. Batches of another size need a graph each, too.

    Raises:
        RuntimeError: the network is on a CPU, and there is no C++ compiler. In training torch
            raises its own: for a network that cannot be one graph, and after eight graphs for
            clips of other lengths or sizes than the trained ones; see :func:`eager`.
    """
    device = next((p.device.type for p in model.parameters()), "cpu")
    if device == "cpu" and not has_compiler():
        raise RuntimeError(
            f"no C++ compiler for torch.compile: neither $CXX nor {' nor '.join(COMPILERS)} is "
            "there; install one, or train without compiling"
        )
    flexible = isinstance(model, FrameFlexible)
    _allow_graphs(len(model.trained_frames) if flexible else 1)
    (model.model if flexible else model).compile(dynamic=False, fullgraph=True)


def has_compiler() -> bool:
    """Whether there is a C++ compiler, which graphs on a CPU need."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), *COMPILERS))


def eager() -> AbstractContextManager[None]:
    """Inside, compiled networks run uncompiled, as for the many lengths of a validation."""
    return torch.compiler.set_stance("force_eager")


def _allow_graphs(number: int) -> None:
    """Let torch keep as many graphs more; it counts those of all networks of a class together."""
    config = torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # 2.6
    setattr(config, name, getattr(config, name) + number)
