"""Modules private to each trained frame count, and weight alterations (paper §3.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


class PrivateModules(nn.ModuleDict):
    """One module per trained frame count; ``forward`` runs the module of the ``active`` count.

    State-dict keys contain the count: ``bn1.16.weight``. Initially, the largest count is active.
    The state of a count between two trained ones is interpolated, linearly in the count.
    """

    def __init__(self, modules: Mapping[int, nn.Module]) -> None:
        super().__init__({str(count): module for count, module in sorted(modules.items())})
        self.active = max(modules)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the active count's module."""
        module, state = self._select()
        if state and self.training:
            raise ValueError(f"{self.active} frames are interpolated; train at {', '.join(self)}")
        return functional_call(module, state, args, kwargs) if state else module(*args, **kwargs)

    def active_module(self) -> nn.Module:
        """The active count's module; an interpolated state overwrites that of a smaller count."""
        module, state = self._select()
        if state:
            module.load_state_dict(state, strict=False)
        return module

    def _select(self) -> tuple[nn.Module, dict[str, Tensor]]:
        """The module to run, and its interpolated state; none at a trained count."""
        if str(self.active) in self:
            return self[str(self.active)], {}
        low = max(n for n in map(int, self) if n < self.active)
        high = min(n for n in map(int, self) if n > self.active)
        smaller, larger = self[str(low)], self[str(high)].state_dict()
        entries = {k: v for k, v in smaller.state_dict().items() if v.is_floating_point()}
        share = (self.active - low) / (high - low)
        return smaller, {key: value.lerp(larger[key], share) for key, value in entries.items()}


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
