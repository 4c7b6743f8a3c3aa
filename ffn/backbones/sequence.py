"""A head that returns logits for every step in time, for sequences such as texts.

The features of each frame (``frame_features``) are pooled over space alone. T frames are T steps,
in a UniFormer, which halves T, ceil(T / 2), and ``upsample`` times as many after the upsampling.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ffn.backbones.head import HeadNetwork
from ffn.backbones.registry import register_head
from ffn.layers import resample


@register_head("sequence")
class SequenceNetwork(HeadNetwork):
    """A backbone, a layer norm, two layers over time, and a linear layer for each step.

    Args:
        backbone: with ``forward_features`` and ``frame_features``; its classifier is removed.
        num_classes: K tokens; the last of the K + 1 logits is that of CTC's blank.
        layers: "gru", bidirectional (LipNet), or "conv".
        hidden: channels of a direction of the GRUs, or half of those of the convolutions.
        upsample: steps per frame, interpolated linearly.
    """

    def __init__(
        self,
        backbone: nn.Module,
        num_classes: int,
        *,
        layers: str = "gru",
        hidden: int = 256,
        upsample: int = 1,
    ) -> None:
        if not hasattr(backbone, "frame_features"):
            kind = type(backbone).__name__
            raise ValueError(f"{kind} has no frame_features(features), which returns (B, T, C)")
        channels = backbone.head_hidden_size
        super().__init__(backbone, num_classes)
        self.upsample = upsample
        over_time = _Gru(channels, hidden) if layers == "gru" else _Convs(channels, hidden)
        norm, linear = nn.LayerNorm(channels), nn.Linear(2 * hidden, num_classes + 1)
        self.head = nn.Sequential(norm, over_time, linear)  # large features saturate GRUs

    def forward_head(self, features: Any) -> Tensor:
        """Logits (B, T', K + 1) of feature maps."""
        x = self.backbone.frame_features(features)  # (B, T, C)

        return self.head(resample(x, self.upsample * x.shape[1]))


class _Gru(nn.GRU):
    """Two bidirectional GRUs, (B, T, C) to (B, T, 2 * hidden)."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__(channels, hidden, 2, batch_first=True, bidirectional=True)
        for name, weight in self.named_parameters():
            for matrix in weight.chunk(3) if "weight_hh" in name else ():  # as LipNet, §4
                nn.init.orthogonal_(matrix)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]


class _Convs(nn.Sequential):
    """Two convolutions over five steps, (B, T, C) to (B, T, 2 * hidden)."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        for inputs in (channels, 2 * hidden):
            self.append(nn.Conv1d(inputs, 2 * hidden, 5, padding=2, bias=False))
            self.extend([nn.BatchNorm1d(2 * hidden), nn.ReLU(inplace=True)])

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)
