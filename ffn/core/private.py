"""Modules private to each trained frame count, and weight alterations (paper §3.3)."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, compiler, nn


class ActiveCount(threading.local):
    """The active count, for each thread its own; the private modules of a network share one."""

    def __init__(self, count: int) -> None:
        # torch.compile loses what it sets on the local itself.
        self._state = {"count": count, "in_backward": False}

    count = property(lambda self: self._state["count"], lambda self, n: self.set(n))

    def set(self, count: int) -> None:
        """Set the count, of a forward pass, or again in the backward of one."""
        self._state.update(count=count, in_backward=_runs_backward())

    def is_lost(self) -> bool:
        """Whether a backward runs, and the count has not been set in one."""
        return _runs_backward() and not self._state["in_backward"]

    def __reduce__(self) -> tuple[Any, ...]:
        return ActiveCount, (self.count,)  # copies and pickles have the count of this thread


def _runs_backward() -> bool:
    return not compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class PrivateModules(nn.ModuleDict):
    """One module per trained frame count; ``forward`` runs the module of the ``active`` count.

    State-dict keys contain the count: ``bn1.16.weight``. Initially, the largest count is active.
    The state of a count between two trained ones is interpolated, linearly in the count.
    """

    def __init__(self, modules: Mapping[int, nn.Module]) -> None:
        super().__init__({str(count): module for count, module in sorted(modules.items())})
        self.selected = ActiveCount(max(modules))

    def __getattr__(self, name: str) -> Any:
        """An attribute of the active count's module, such as ``eps``, for code that reads it."""
        if name in self._modules or name.startswith("_") or "selected" not in self.__dict__:
            return super().__getattr__(name)
        return getattr(self.active_module(), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the active count's module."""
        if self.training and (count := str(self.selected.count)) not in self:
            raise ValueError(f"{count} frames are interpolated; train at {', '.join(self)}")
        if self.selected.is_lost():
            cause = "activation checkpointing runs a part of the network without its frame count"
            raise RuntimeError(f"{cause}; pass tensors to it by position: checkpoint(part, x, …)")
        return self.active_module()(*args, **kwargs)

    def active_module(self) -> nn.Module:
        """The active count's module; between two trained counts, a new interpolated one."""
        active = self.selected.count
        if str(active) in self:
            return self[str(active)]
        low = max(n for n in map(int, self) if n < active)
        high = min(n for n in map(int, self) if n > active)
        return _lerp(self[str(low)], self[str(high)], (active - low) / (high - low))


class WeightAlteration(nn.Module):
    """``x * (1 + a_c)`` per channel: a 1x1 depthwise convolution without bias, plus identity.

    The weights start at N(0, 1e-3). With zero weights, the output equals the input bit for bit.

    Args:
        channels: number of channels C.
        channel_dim: dimension of the channels, 1 for feature maps, -1 for tokens.
    """

    def __init__(self, channels: int, channel_dim: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels).normal_(std=1e-3))
        self.channel_dim = channel_dim

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels of x; shape and dtype do not change."""
        # Not x * (1 + a): in bf16, the sum rounds |a| < 0.004 to 0.
        shape = [1] * x.ndim
        shape[self.channel_dim] = -1
        return torch.addcmul(x, x, self.weight.to(x.dtype).view(shape))


def _lerp(one: nn.Module, two: nn.Module, share: float) -> nn.Module:
    """A module like ``one`` with the parameters and statistics ``one + share * (two - one)``."""

    def mix(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, Tensor]:
        floats = {k for k, v in a.items() if v is not None and v.is_floating_point()}
        return {k: v.lerp(b[k], share) if k in floats else v for k, v in a.items()}

    new = copy.copy(one)
    new._parameters = mix(one._parameters, two._parameters)
    new._buffers = mix(one._buffers, two._buffers)
    new._modules = {k: m and _lerp(m, two._modules[k], share) for k, m in one._modules.items()}
    return new
