"""Random crops for training and three-crop testing, with one window for all frames of a sample.

Frames are uint8 (N, C, H, W); a crop returns squares of `side` pixels (N, C, side, side). Windows
are drawn from the generator that is passed in. Scales of a window are fractions of the shorter
side, descending.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ffn.data.global_rng import library_draws

SCALES = (1.0, 0.875, 0.75, 0.66)  # TSN (Wang et al. 2016), section 3.1; TSM
AREA = (0.08, 1.0)  # Inception (Szegedy et al. 2015); UniFormer
ASPECT = (0.75, 1.3333)  # Inception; UniFormer
JITTER_SCALES = (256, 320)  # SlowFast (Feichtenhofer et al. 2019), section 4


def resize(x: Tensor, *size: int) -> Tensor:
    """Resize frames, bilinear with antialiasing.

    Args:
        x: Frames (N, C, H, W).
        size: Length of the shorter side of the result in pixels, the longer one is rounded down; or
            its height and width.
    """
    from torchvision.transforms.v2 import functional  # its import takes two seconds

    return functional.resize(x, list(size), antialias=True)


def multiscale_crop(
    x: Tensor, side: int, generator: np.random.Generator, scales: Sequence[float] = SCALES
) -> Tensor:
    """Multi-scale crop of TSN, TSM and TEA: a window of :func:`draw_crop`, resized to a square."""
    top, left, height, width = draw_crop(*x.shape[-2:], generator, scales)
    return resize(x[..., top : top + height, left : left + width], side, side)


def resized_crop(
    x: Tensor,
    side: int,
    generator: np.random.Generator,
    area: Sequence[float] = AREA,
    aspect: Sequence[float] = ASPECT,
) -> Tensor:
    """Random resized crop of Inception and UniFormer: random area, aspect ratio and position.

    Args:
        area: Smallest and largest share of the frame; the draw is uniform.
        aspect: Smallest and largest width / height; the draw is log-uniform.
    """
    from torchvision.transforms import v2

    crop = v2.RandomResizedCrop([side, side], tuple(area), tuple(aspect), antialias=True)
    with library_draws(generator):
        return crop(x)


def jittered_crop(
    x: Tensor, side: int, generator: np.random.Generator, scales: Sequence[int] = JITTER_SCALES
) -> Tensor:
    """Scale jitter of SlowFast: resize the shorter side to a random length, crop a random square.

    The length is uniform between the two ``scales``, in pixels.
    """
    x = resize(x, round(generator.uniform(*scales)))
    height, width = x.shape[-2:]
    top, left = generator.integers(height - side + 1), generator.integers(width - side + 1)
    return x[..., top : top + side, left : left + side]


def three_squares(x: Tensor, side: int) -> Tensor:
    """Three-crop testing: resize the shorter side, crop squares along the longer side.

    The squares are left, center and right of a wide frame; top, center and bottom of a high one.
    This is the rule of SlowFast and UniFormer (spatial indices 0, 1, 2), and of TSM with
    `--test_crops 3 --full_res`.

    Returns:
        (3, N, C, side, side).
    """
    x = resize(x, side)
    height, width = x.shape[-2:]
    down, right = height - side, width - side
    corners = [(0, 0), (-(-down // 2), -(-right // 2)), (down, right)]  # SlowFast rounds up
    return torch.stack([x[..., top : top + side, left : left + side] for top, left in corners])


def draw_crop(
    height: int,
    width: int,
    generator: np.random.Generator,
    scales: Sequence[float] = SCALES,
) -> tuple[int, int, int, int]:
    """Draw the window of TSN's multi-scale crop.

    Height and width are two of `scales`, at most one step apart, times the shorter side. The window
    has one of 13 fixed positions: corners, edges, center and in between.

    Returns:
        Top, left, height and width of the window, in pixels.
    """
    sizes = [max(1, int(min(height, width) * scale)) for scale in scales]
    pairs = [(h, w) for i, h in enumerate(sizes) for j, w in enumerate(sizes) if abs(i - j) <= 1]
    crop_height, crop_width = pairs[generator.integers(len(pairs))]
    down, right = _POSITIONS[generator.integers(len(_POSITIONS))]
    step_down, step_right = (height - crop_height) // 4, (width - crop_width) // 4
    return down * step_down, right * step_right, crop_height, crop_width


# (down, right) in quarters of the free space: TSN's `more_fix_crop`.
_POSITIONS = (
    *((0, 0), (0, 4), (4, 0), (4, 4), (2, 2)),
    *((2, 0), (2, 4), (4, 2), (0, 2)),
    *((1, 1), (1, 3), (3, 1), (3, 3)),
)
