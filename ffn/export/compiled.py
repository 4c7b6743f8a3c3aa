"""``torch.compile`` for inference."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

_FIRST_CALLS = threading.Lock()  # options of the compiler are those of the process


class Compiled(nn.Module):
    """A network that ``torch.compile`` compiles for inference; outputs have no gradients.

    - Its graphs are its own. torch keeps those of a function, such as the forward of a class, in
      one place; after eight for different networks or shapes, others would run uncompiled.
    - On a CPU, weights become constants of the graph ("freezing"), which oneDNN packs.
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
        self._run = torch.compile(run)
        self._known: set[tuple] = set()  # shapes that have a graph

    def forward(self, clip: Tensor) -> Tensor:
        """Logits of a clip; the first call for a shape may compile, one at a time."""
        with torch.inference_mode(False), torch.no_grad():
            clip = clip.clone() if clip.is_inference() else clip
            key = clip.shape, clip.dtype, clip.device
            if key in self._known:
                return self._run(clip)
            with _FIRST_CALLS, _frozen_weights(clip):
                logits = self._run(clip)
            self._known.add(key)
            return logits


def _frozen_weights(clip: Tensor) -> AbstractContextManager:
    if clip.device.type != "cpu":
        return nullcontext()
    from torch._inductor import config

    return config.patch(freezing=True)
