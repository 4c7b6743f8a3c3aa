"""The temporal shift of TSM (Lin et al., ICCV 2019, 1811.08383, §3) and a convolution with it.

Bidirectional, offline form only. The online (uni-directional, cached) form is left out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ffn.layers.alteration_site import AlterationSite
from ffn.layers.clip import ClipLength


def temporal_shift(x: Tensor, frames: int, divisor: int = 8) -> Tensor:
    """Move 1/divisor of the channels one frame back in time and as many one frame forth.

    Channels [0, f) of frame t come from frame t + 1, channels [f, 2f) from frame t - 1, with
    f = C // divisor; the frame beyond either end of a clip is zero. Clips never mix.

    Args:
        x: feature maps (N, C, H, W) with N = B * frames, clip-major.
        frames: T, frames of each clip.
        divisor: 8 shifts 1/8 + 1/8 of the channels, the paper's choice.

    Returns:
        A new tensor of x's shape.
    """
    fold = x.shape[1] // divisor
    x = x.unflatten(0, (-1, frames))  # (B, T, C, H, W)
    out = torch.zeros_like(x)

    out[:, :-1, :fold] = x[:, 1:, :fold]
    out[:, 1:, fold : 2 * fold] = x[:, :-1, fold : 2 * fold]
    out[:, :, 2 * fold :] = x[:, :, 2 * fold :]

    return out.flatten(0, 1)  # (N, C, H, W)


class ShiftConv2d(nn.Conv2d):
    """A convolution that shifts its input in time first; its keys stay those of ``nn.Conv2d``.

    Between shift and convolution lies the alteration site of the Frame Flexible Network.

    Args:
        conv: the convolution to take over, weights included (shared, not copied).
        length: where the surrounding model writes the clip's T.
        divisor: see :func:`temporal_shift`.
    """

    def __init__(self, conv: nn.Conv2d, length: ClipLength, divisor: int = 8) -> None:
        nn.Module.__init__(self)  # every attribute, the weights first of all, is the given one's
        self.__dict__.update({k: v for k, v in conv.__dict__.items() if not k.startswith("_")})
        self._reversed_padding_repeated_twice = conv._reversed_padding_repeated_twice
        self.weight, self.bias = conv.weight, conv.bias
        self.site = AlterationSite(conv.in_channels)
        self.length = length
        self.divisor = divisor

    def forward(self, x: Tensor) -> Tensor:
        """Shift, alter, convolve: (N, C, H, W) to (N, C', H', W')."""
        x = temporal_shift(x, self.length.frames, self.divisor)
        return super().forward(self.site(x))
