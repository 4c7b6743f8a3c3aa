"""Apply an image network to every frame and average the logits (TSN, ECCV 2016)."""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn

from ffn.layers.clip import ClipLength, check_clip


class PerFrame(nn.Module):
    """Apply a 2-D network to each frame and average its logits over time.

    Args:
        net: maps images (N, C, H, W) to logits (N, K).
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, clip: Tensor) -> Tensor:
        """Classify clips of any length.

        Args:
            clip: (B, C, T, H, W), normalised.

        Returns:
            Logits (B, K).

        Raises:
            ValueError: the clip does not have five dimensions, or T is 0.
        """
        check_clip(clip)
        frames = clip.shape[2]
        x = rearrange(clip, "b c t h w -> (b t) c h w")

        logits = self.net(x)  # (N, K)

        return logits.unflatten(0, (-1, frames)).mean(1)  # (B, K)


class TimedPerFrame(PerFrame):
    """:class:`PerFrame` for a network with layers that mix frames and need T.

    Args:
        net: see :class:`PerFrame`; its layers read T from ``length`` of this module.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.length = ClipLength()

    def forward(self, clip: Tensor) -> Tensor:
        """Classify clips (B, C, T, H, W) of any T; returns logits (B, K)."""
        frames = self.length.frames = clip.shape[2] if clip.ndim == 5 else None

        logits = super().forward(clip)

        if logits.requires_grad and not torch.compiler.is_compiling():
            # Activation checkpointing runs layers again in the backward, after other forwards.
            logits.register_hook(lambda _: setattr(self.length, "frames", frames))
        return logits
