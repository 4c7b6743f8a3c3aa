"""Weight alteration: a private per-channel scale of a feature map (PAPER §3.3, eq. 6)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class WeightAlteration(nn.Module):
    """``x * (1 + a_c)`` per channel: a 1x1 depthwise convolution without bias, plus identity.

    The weights start at N(0, 1e-3); at zero the module returns its input bit for bit.

    Args:
        channels: number of channels C.
        channel_dim: the dimension of x that holds them, 1 for feature maps, -1 for tokens.

    Note:
        The reference implementation overwrites this start by a Kaiming initialisation in TSM and
        SlowFast (standard deviation 0.18 at 64 channels). Here it is what the paper says.
    """

    def __init__(self, channels: int, channel_dim: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels).normal_(std=1e-3))
        self.channel_dim = channel_dim

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels of x; shape and dtype stay."""
        # Not x * (1 + a): in bf16 the sum would round every |a| < 0.004 away.
        shape = [1] * x.ndim
        shape[self.channel_dim] = -1
        return torch.addcmul(x, x, self.weight.to(x.dtype).view(shape))

    def extra_repr(self) -> str:
        """Channels, for ``print(model)``."""
        return f"{self.weight.numel()}"
