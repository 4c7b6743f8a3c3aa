"""A 3-D convolution with a shortcut around it."""

from __future__ import annotations

from torch import Tensor, nn

from ffn.conv3d import Conv3d


class ShortcutConv3d(Conv3d):
    """``x + conv(x)`` of a depthwise convolution that keeps the shape of x."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T, H, W) to the same shape."""
        return x + super().forward(x)

    def for_inference(self) -> nn.Conv3d:
        """A convolution without a shortcut: the center of its kernel is larger by 1."""
        conv = super().for_inference()
        conv.weight[(slice(None), 0, *(size // 2 for size in self.kernel_size))] += 1
        return conv
