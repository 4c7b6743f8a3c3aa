"""Random crops of training and the squares of a test: one window for all frames of a sample.

Frames are uint8 (N, C, H, W). Random numbers come from the generator that is passed in; the pixels
are moved by torchvision's transforms v2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from ffn.data.draws import library_draws

SCALES = (1.0, 0.875, 0.75, 0.66)  # TSN (Wang et al. 2016), section 3.1; TSM
AREA = (0.08, 1.0)  # Inception (Szegedy et al. 2015); UniFormer
ASPECT = (0.75, 1.3333)  # likewise
JITTER_SCALES = (256, 320)  # SlowFast (Feichtenhofer et al. 2019), section 4


def multiscale_crop(
    x: Tensor, side: int, generator: np.random.Generator, scales: Sequence[float] = SCALES
) -> Tensor:
    """Cut the window that :func:`draw_crop` draws, and resize it: TSN, TSM, TEA.

    Args:
        x: Frames (N, C, H, W).
        side: Of the result, in pixels.
        generator: Source of two draws.
        scales: Sides of the window over the shorter side, descending.

    Returns:
        (N, C, side, side).
    """
    top, left, height, width = draw_crop(*x.shape[-2:], generator, scales)
    return F.resized_crop(x, top, left, height, width, [side, side], antialias=True)


def resized_crop(
    x: Tensor,
    side: int,
    generator: np.random.Generator,
    area: Sequence[float] = AREA,
    aspect: Sequence[float] = ASPECT,
) -> Tensor:
    """Cut a window of random area and shape anywhere, and resize it: Inception, UniFormer.

    Args:
        x: Frames (N, C, H, W).
        side: Of the result, in pixels.
        generator: Source of one draw.
        area: Least and largest share of the frame, uniform between them.
        aspect: Least and largest width over height, log-uniform between them.

    Returns:
        (N, C, side, side).
    """
    crop = v2.RandomResizedCrop([side, side], tuple(area), tuple(aspect), antialias=True)
    with library_draws(generator):
        return crop(x)


def jittered_crop(
    x: Tensor, side: int, generator: np.random.Generator, scales: Sequence[int] = JITTER_SCALES
) -> Tensor:
    """Resize the shorter side to a random length, and cut a square anywhere: SlowFast.

    Args:
        x: Frames (N, C, H, W).
        side: Of the square, in pixels.
        generator: Source of three draws.
        scales: Least and largest length of the shorter side, in pixels; uniform between them.

    Returns:
        (N, C, side, side).
    """
    x = F.resize(x, [round(generator.uniform(*scales))], antialias=True)
    height, width = x.shape[-2:]
    top, left = generator.integers(height - side + 1), generator.integers(width - side + 1)
    return F.crop(x, int(top), int(left), side, side)


def three_squares(x: Tensor, side: int) -> Tensor:
    """Resize the shorter side, and cut the squares at both ends and in the middle of the longer.

    Left, centre, right of a wide frame; top, centre, bottom of a high one: together they cover a
    frame up to three times as long as high. The rule of SlowFast and UniFormer (their spatial
    indices 0, 1, 2), and of TSM with `--test_crops 3 --full_res`.

    Args:
        x: Frames (N, C, H, W).
        side: Of the squares, in pixels.

    Returns:
        (3, N, C, side, side).
    """
    x = F.resize(x, [side], antialias=True)
    height, width = x.shape[-2:]
    down, right = height - side, width - side
    places = [(0, 0), (-(-down // 2), -(-right // 2)), (down, right)]  # SlowFast rounds up
    return torch.stack([F.crop(x, top, left, side, side) for top, left in places])


def draw_crop(
    height: int,
    width: int,
    generator: np.random.Generator,
    scales: Sequence[float] = SCALES,
) -> tuple[int, int, int, int]:
    """Draw the window of TSN's multi-scale crop.

    Height and width are one of `scales` times the shorter side, at most one step apart; the window
    lies at one of 13 fixed places: corners, edges, centre and in between.

    Args:
        height: Of the frame, in pixels.
        width: Of the frame, in pixels.
        generator: Source of two draws.
        scales: Descending.

    Returns:
        top, left, height and width of the window, in pixels.
    """
    sizes = [max(1, int(min(height, width) * scale)) for scale in scales]
    pairs = [(h, w) for i, h in enumerate(sizes) for j, w in enumerate(sizes) if abs(i - j) <= 1]
    crop_height, crop_width = pairs[generator.integers(len(pairs))]
    down, right = _PLACES[generator.integers(len(_PLACES))]
    step_down, step_right = (height - crop_height) // 4, (width - crop_width) // 4
    return down * step_down, right * step_right, crop_height, crop_width


# In quarters of the free space: (down, right). TSN's `more_fix_crop`.
_PLACES = (
    *((0, 0), (0, 4), (4, 0), (4, 4), (2, 2)),
    *((2, 0), (2, 4), (4, 2), (0, 2)),
    *((1, 1), (1, 3), (3, 1), (3, 3)),
)
