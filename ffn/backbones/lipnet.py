"""LipNet (Assael et al. 2016, 1611.01599): three convolutions over space and time.

With the head ``sequence``, two bidirectional GRUs and a linear layer for each frame, it is the
network of the paper's table of layers. Without a head, it classifies the mean of all frames.

Note:
    A batch norm follows each convolution, as in common implementations, and a layer norm precedes
    the GRUs; the paper has none. Maps are averaged to the grid of the table for frames of any size,
    and not changed for its 50 x 100.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from ffn.backbones.registry import register
from ffn.layers import AlterationSite, PooledClassifier, check_clip, init_classifier


class LipNet(PooledClassifier):
    """Convolutions and a linear layer, for clips of any length and frames of 16 px or more.

    Args:
        num_classes: K.
        channels: of the three convolutions.
        grid: rows and columns of the features of a frame.
        dropout: of the channels of a map after each convolution.
    """

    def __init__(
        self,
        num_classes: int = 400,
        *,
        channels: Sequence[int] = (32, 64, 96),
        grid: tuple[int, int] = (3, 6),
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        one, two, three = channels
        self.grid = grid
        self.blocks = nn.Sequential(
            _block(3, one, (3, 5, 5), dropout, stride=2),
            _block(one, two, (3, 5, 5), dropout),
            _block(two, three, (3, 3, 3), dropout),
        )
        self.add_classifier(three * grid[0] * grid[1], num_classes, 0.0)
        init_classifier(self.head, self.head_std)

    def forward_features(self, clip: Tensor) -> Tensor:
        """The map of the last convolution (B, C, T, H / 16, W / 16)."""
        check_clip(clip, 3)
        return self.blocks(clip)

    def frame_features(self, features: Tensor) -> Tensor:
        """The values of the map in the cells of the grid, for each frame (B, T, C)."""
        cells = F.adaptive_avg_pool3d(features, (None, *self.grid))
        return cells.transpose(1, 2).flatten(2)

    def pool(self, features: Tensor) -> Tensor:
        """The average (B, C) over the frames."""
        return self.frame_features(features).mean(1)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Patterns of parameter names per layer, as in timm."""
        return {"stem": r"blocks\.0", "blocks": r"blocks\.(\d+)"}


def _block(
    channels: int, out: int, kernel: tuple[int, int, int], dropout: float, stride: int = 1
) -> nn.Sequential:
    conv = nn.Conv3d(channels, out, kernel, (1, stride, stride), [size // 2 for size in kernel])
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    norm = nn.BatchNorm3d(out), nn.ReLU(inplace=True), nn.Dropout3d(dropout)
    return nn.Sequential(AlterationSite(channels), conv, *norm, nn.MaxPool3d((1, 2, 2)))


@register
def lipnet(**kwargs: Any) -> LipNet:
    """LipNet: 75 frames of 50 x 100 px in the paper; with its GRUs 4.6 M parameters."""
    return LipNet(**kwargs)


@register
def lipnet_tiny(*, num_classes: int = 400, dropout: float = 0.0, width: int = 8) -> LipNet:
    """A LipNet for CPUs and frames of 24 to 64 px."""
    channels = (width, 2 * width, 3 * width)
    return LipNet(num_classes, channels=channels, grid=(2, 2), dropout=dropout)
