"""An image network on every frame of a clip, logits averaged over the frames (TSN, ECCV 2016)."""

from __future__ import annotations

from einops import rearrange
from torch import Tensor, nn


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
            ValueError: the clip has not five dimensions, or no frame.
        """
        if clip.ndim != 5 or clip.shape[2] < 1:
            raise ValueError(
                f"clip has {clip.ndim} dims {tuple(clip.shape)}; expected (B, C, T, H, W), T >= 1. "
                "One clip? Add a batch dimension with clip[None]."
            )
        frames = clip.shape[2]
        x = rearrange(clip, "b c t h w -> (b t) c h w")

        logits = self.net(x)  # (N, K)

        return logits.unflatten(0, (-1, frames)).mean(1)  # (B, K)
