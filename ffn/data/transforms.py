"""Training and test transforms: crop, flip and augmentation of decoded frames.

A transform takes the frames of all views of a sample together, so that all views get the same crop,
flip and augmentation. Random draws come from the generator that is passed in. The result is uint8
RGB; `ffn.data.Normalize` converts it to float on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from ffn.data.augment import ColorJitter, RandAugment, RandomErasing
from ffn.data.crops import (
    AREA,
    ASPECT,
    JITTER_SCALES,
    SCALES,
    jittered_crop,
    multiscale_crop,
    resize,
    resized_crop,
    three_squares,
)
from ffn.data.preprocessing import Preprocessing
from ffn.data.records import Label
from ffn.data.sampling import CROPS
from ffn.labels import canonical
from ffn.limits import frame_refusal

CROP_MODES = ("multiscale", "resized", "scale_jitter")


class TrainTransform:
    """Random crop, flip, color jitter, RandAugment and random erasing, in this order.

    The defaults are the training transform of TSN and TSM.

    Args:
        preprocessing: Input size and normalization.
        crop_mode: `multiscale` (TSN, TSM); `resized`, random area and aspect ratio (UniFormer);
            `scale_jitter`, random length of the shorter side (SlowFast). See `ffn.data.crops`.
        scales: For `multiscale`, sides of the crop as fractions of the shorter side, each above 0
            and at most 1.
        area: For `resized`, smallest and largest share of the frame.
        aspect: For `resized`, smallest and largest width / height.
        jitter_scales: For `scale_jitter`, smallest and largest length of the shorter side, in
            pixels.
        flip: `none`; `random`: flip half of the samples; `swap`: also change the label of a flipped
            sample, for classes that differ by left and right.
        flip_pairs: For `swap`, pairs of class indices that a flip exchanges; other classes keep
            their label.
        color_jitter: Strengths of brightness, contrast, saturation and hue; zeros disable it.
        randaugment: A policy of timm, e.g. `rand-m7-n4-mstd0.5-inc1`; None disables it.
        random_erasing: Probability that a box is replaced by noise.

    Raises:
        ValueError: if an option is unknown or outside its range, or a class is in several pairs.
    """

    def __init__(
        self,
        preprocessing: Preprocessing,
        *,
        crop_mode: str = "multiscale",
        scales: Sequence[float] = SCALES,
        area: Sequence[float] = AREA,
        aspect: Sequence[float] = ASPECT,
        jitter_scales: Sequence[int] = JITTER_SCALES,
        flip: str = "none",
        flip_pairs: Sequence[Sequence[int]] = (),
        color_jitter: Sequence[float] = (0.0, 0.0, 0.0, 0.0),
        randaugment: str | None = None,
        random_erasing: float = 0.0,
    ) -> None:
        if flip not in ("none", "random", "swap") or (flip == "swap") != bool(flip_pairs):
            raise ValueError(
                f"flip is {flip!r} with {len(flip_pairs)} flip_pairs; expected 'none' or 'random' "
                "without pairs, or 'swap' with pairs, e.g. [[0, 1]]"
            )
        if len(color_jitter) != 4:
            raise ValueError(f"color_jitter is {list(color_jitter)}; expected four strengths")
        self.preprocessing, self.flip = preprocessing, flip
        self.flipped_label = _flipped_labels(flip_pairs)
        self._crop = _build_crop(crop_mode, preprocessing.crop, scales, area, aspect, jitter_scales)

        mean, std = preprocessing.mean, preprocessing.std
        if preprocessing.color == "bgr":  # frames are RGB before the normalization
            mean, std = mean[::-1], std[::-1]
        self._augmentations: list[Callable[[Tensor, np.random.Generator], Tensor]] = []
        if any(color_jitter):
            self._augmentations.append(ColorJitter(color_jitter))
        if randaugment is not None:
            fill = [min(255, round(255 * value)) for value in mean]
            self._augmentations.append(RandAugment(randaugment, fill))
        if random_erasing:
            self._augmentations.append(RandomErasing(random_erasing, mean, std))

    def __call__(
        self, frames: Tensor, label: Label, generator: np.random.Generator
    ) -> tuple[Tensor, Label]:
        """Apply the same transform to all frames of a sample.

        Args:
            frames: uint8 RGB of shape (N, H, W, 3).
            label: Class index, or several.
            generator: Source of all draws.

        Returns:
            uint8 RGB frames (N, 3, crop, crop), and the label.
        """
        _check_frames(frames)
        x = frames.permute(0, 3, 1, 2)  # (N, C, H, W)
        x = self._crop(x, generator=generator)
        if self.flip != "none" and generator.random() < 0.5:
            x = x.flip(-1)
            label = self._flip_label(label)
        for augment in self._augmentations:
            x = augment(x, generator)
        return x, label

    def _flip_label(self, label: Label) -> Label:
        if isinstance(label, tuple):
            return tuple(sorted(self.flipped_label.get(one, one) for one in label))
        return self.flipped_label.get(label, label)


class EvalTransform:
    """Test transform: resize the shorter side to `resize` pixels, then crop.

    One crop is the center square of `crop` pixels. Three crops are squares of `resize` pixels
    (`ffn.data.crops.three_squares`), so the network's input has `resize` pixels. To test three
    crops of the training size, set `resize` to it (UniFormer: 224).

    Args:
        preprocessing: Sizes.
        crops: 1 or 3.

    Raises:
        ValueError: for another number of crops.
    """

    def __init__(self, preprocessing: Preprocessing, crops: int = 1) -> None:
        if crops not in CROPS:
            raise ValueError(f"crops is {crops}; expected 1 (center) or 3 (both ends and center)")
        self.preprocessing, self.crops = preprocessing, crops

    @property
    def side(self) -> int:
        """Height and width of the result, in pixels."""
        return self.preprocessing.crop if self.crops == 1 else self.preprocessing.resize

    def __call__(self, frames: Tensor) -> Tensor:
        """Apply the same transform to all frames of a sample.

        Args:
            frames: uint8 RGB of shape (N, H, W, 3).

        Returns:
            uint8 RGB frames of shape (N, 3, side, side); with three crops (3, N, 3, side, side).

        Raises:
            ValueError: if the frames have another dtype, shape or size, see `frame_refusal`.
        """
        _check_frames(frames)
        x = frames.permute(0, 3, 1, 2)  # (N, C, H, W)
        if self.crops == 3:
            return three_squares(x, self.side)
        x = resize(x, self.preprocessing.resize)
        top, left = (round((length - self.side) / 2) for length in x.shape[-2:])
        return x[..., top : top + self.side, left : left + self.side]


def _build_crop(
    mode: str,
    side: int,
    scales: Sequence[float],
    area: Sequence[float],
    aspect: Sequence[float],
    jitter_scales: Sequence[int],
) -> Callable[..., Tensor]:
    """Check the options of a crop mode and return its function."""
    if mode == "multiscale":
        if not scales or min(scales) <= 0 or max(scales) > 1:
            raise ValueError(f"scales is {list(scales)}; expected numbers above 0 and at most 1")
        return partial(multiscale_crop, side=side, scales=tuple(sorted(scales, reverse=True)))
    if mode == "resized":
        in_order = 0 < area[0] <= area[-1] <= 1 and 0 < aspect[0] <= aspect[-1]
        if len(area) != 2 or len(aspect) != 2 or not in_order:
            raise ValueError(
                f"area is {list(area)} and aspect {list(aspect)}; expected the smallest and the "
                "largest share, up to 1, and the smallest and the largest ratio"
            )
        return partial(resized_crop, side=side, area=area, aspect=aspect)
    if mode == "scale_jitter":
        if len(jitter_scales) != 2 or not side <= jitter_scales[0] <= jitter_scales[1]:
            raise ValueError(
                f"jitter_scales is {list(jitter_scales)}; expected two lengths in pixels, "
                f"crop {side} <= smallest <= largest"
            )
        return partial(jittered_crop, side=side, scales=jitter_scales)
    raise ValueError(f"crop_mode is {mode!r}; expected one of {', '.join(CROP_MODES)}")


def _check_frames(frames: Tensor) -> None:
    if frames.dtype != torch.uint8 or frames.ndim != 4 or frames.shape[-1] != 3:
        raise ValueError(
            f"frames are {frames.dtype} {tuple(frames.shape)}; expected uint8 (N, H, W, 3)"
        )
    if refusal := frame_refusal(frames.shape[2], frames.shape[1]):
        raise ValueError(f"frames have {refusal}")


def swap_pairs(pairs: Sequence[Sequence[str]], classes: Sequence[str]) -> list[list[int]]:
    """Convert pairs of class names, as `[["left", "right"]]`, to pairs of indices.

    Raises:
        ValueError: if a name is not a class, or a class is in several pairs.
    """
    pairs = [[*map(canonical, pair)] for pair in pairs]
    for name in chain(*pairs):
        if name not in classes:
            close = get_close_matches(name, classes, n=1, cutoff=0.0)
            raise ValueError(
                f"flip_pairs contains {name!r}, which is not one of the {len(classes)} classes; "
                f"the closest is {close[0]!r}"
            )
    indices = [[list(classes).index(name) for name in pair] for pair in pairs]
    _flipped_labels(indices)
    return indices


def _flipped_labels(pairs: Sequence[Sequence[int]]) -> dict[int, int]:
    """Label after a flip, for each class in a pair.

    Raises:
        ValueError: if a pair is not two different classes, or a class is in several pairs.
    """
    flipped: dict[int, int] = {}
    for pair in pairs:
        if len(pair) != 2 or pair[0] == pair[1] or flipped.keys() & {*pair}:
            raise ValueError(
                f"flip_pairs contains {list(pair)}; expected two different classes, and each "
                "class in one pair"
            )
        flipped |= {pair[0]: pair[1], pair[1]: pair[0]}
    return flipped
