"""``torch.compile`` for inference."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

GRAPHS = 8  # torch's limit for a function, see torch._dynamo.config.recompile_limit

_log = logging.getLogger(__name__)
_compiling = threading.Lock()  # options of the compiler are those of the process


class Compiled(nn.Module):
    """A network that ``torch.compile`` compiles for inference; outputs have no gradients.

    - Each shape of a clip has a graph, up to eight; clips of other shapes run uncompiled, with a
      warning, and so do those for which torch fails.
    - The graphs are the network's own. torch keeps those of a function, such as the forward of a
      class, in one place; after eight for different networks, others would run uncompiled.
    - On a CPU, weights become constants of the graph ("freezing"), which oneDNN packs. Graphs for
      several shapes would then fail for TEA (torch 2.15).
    - There is one graph for clips of inference tensors and of others.

    Args:
        network: in eval mode. Its weights must not change after the first call.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

        def run(clip: Tensor) -> Tensor:
            return network(clip)

        run.__code__ = run.__code__.replace()  # a copy; graphs are kept with the code
        self._run = torch.compile(run, dynamic=False)
        self._runs: dict[tuple, Callable[[Tensor], Tensor]] = {}  # by shape
        self._warned = False

    def forward(self, clip: Tensor) -> Tensor:
        """Logits of a clip; the first call for a shape compiles, one at a time."""
        with torch.inference_mode(False), torch.no_grad():
            clip = clip.clone() if clip.is_inference() else clip
            key = clip.shape, clip.dtype, clip.device
            if key not in self._runs:
                self._runs[key] = self._choose(clip)
            return self._runs[key](clip)

    def _choose(self, clip: Tensor) -> Callable[[Tensor], Tensor]:
        """The compiled network, or the network if it cannot be compiled for a clip."""
        with _compiling, _frozen_weights(clip):
            if sum(run is self._run for run in self._runs.values()) >= GRAPHS:
                self._warn(clip, f"it has graphs for {GRAPHS} other shapes")
                return self.network
            try:
                self._run(clip)
            except (MemoryError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # any, of a network of anyone
                text = " ".join(f"{type(error).__name__}: {error}".split())
                self._warn(clip, f"torch.compile failed ({text[:200]})")
                return self.network
        return self._run

    def _warn(self, clip: Tensor, reason: str) -> None:
        if self._warned:
            return
        self._warned = True
        _log.warning(
            "%s is not compiled for clips of shape %s: %s. Such clips have the same answers, but "
            "run more slowly",
            *(type(self.network).__name__, tuple(clip.shape), reason),
        )


def _frozen_weights(clip: Tensor) -> AbstractContextManager:
    if clip.device.type != "cpu":
        return nullcontext()
    from torch._inductor import config

    return config.patch(freezing=True)
