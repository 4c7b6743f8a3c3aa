"""An attentive probe: few trained layers on the features of a frozen network, for clips of any T.

The features of each frame are averages over the cells of a grid. Blocks of attention with
positions in time and space and a learned query classify them, as the attentive probes of V-JEPA
(2404.08471, §4.2).
"""

from __future__ import annotations

import math

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from ffn.backbones.head import HeadNetwork
from ffn.backbones.registry import register_head
from ffn.backbones.vit import AttentivePooler, sine_positions
from ffn.layers import PerFrame

HEAD_DIM = 64  # channels of an attention head
SPAN = 8  # of the positions, in pairs of frames


@register_head("probe")
class ProbeNetwork(HeadNetwork):
    """A backbone and an attentive probe.

    Args:
        backbone: with ``forward_features``; its classifier is removed.
        num_classes: K.
        width: channels of the probe's tokens, a multiple of 64.
        depth: blocks of attention before that of the query.
        grid: rows and columns of cells.
    """

    def __init__(
        self, backbone: nn.Module, num_classes: int, *, width: int, depth: int, grid: int
    ) -> None:
        super().__init__(backbone, num_classes)
        if width % HEAD_DIM:
            raise ValueError(f"width is {width}; expected a multiple of {HEAD_DIM}")
        self.grid = grid
        self.num_features = backbone.num_features
        pooler = AttentivePooler(width, width // HEAD_DIM, depth, 1e-6)
        linear = nn.Linear(width, num_classes)
        self.head = nn.Sequential(_Tokens(self.num_features, width), pooler, linear)

    def forward(self, clip: Tensor) -> Tensor:
        """Logits (B, K) of clips (B, 3, T, H, W), or of their features."""
        return self.forward_head(clip if clip.shape[1] != 3 else self.forward_features(clip))

    def forward_features(self, clip: Tensor) -> Tensor:
        """Averages over cells, for each frame: (B, C, T, grid, grid)."""
        frames = clip.shape[2]
        size = (None, self.grid, self.grid)
        cells = [F.adaptive_avg_pool3d(x, size) for x in _maps(self.backbone, clip)]
        steps = torch.arange(frames, device=clip.device)
        # A map of two frames counts for both.
        return torch.cat([x[:, :, steps * x.shape[2] // frames] for x in cells], 1)


class _Tokens(nn.Module):
    """Tokens with positions (B, T * H * W, width) of features (B, C, T, H, W)."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.proj = nn.Linear(channels, width)

    def forward(self, features: Tensor) -> Tensor:
        frames, *grid = features.shape[2:]
        x = self.proj(self.norm(features.flatten(2).transpose(1, 2)))  # (B, T * H * W, width)
        shape, span = (frames, *grid), (SPAN, *grid)
        return x + sine_positions(2 * frames, shape, span, x.shape[2], x.device).to(x)


def _maps(backbone: nn.Module, clip: Tensor) -> tuple[Tensor, ...]:
    """The last feature maps (B, C, T, H, W), one per pathway."""
    features = backbone.forward_features(clip)
    if not isinstance(backbone, PerFrame):
        return features if isinstance(features, tuple) else (features,)
    if features.ndim == 4:  # of an image transformer
        tokens = features[:, :, getattr(backbone.net, "num_prefix_tokens", 0) :]
        rows = round(math.sqrt(tokens.shape[2] * clip.shape[3] / clip.shape[4]))
        return (rearrange(tokens, "b t (h w) c -> b c t h w", h=rows),)
    if getattr(backbone.net, "output_fmt", "") == "NHWC":  # of a Swin transformer
        return (features.movedim(-1, 1),)
    return (features.transpose(1, 2),)
