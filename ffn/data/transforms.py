"""From decoded frames to the uint8 frames of a clip: one crop, one flip, one draw for all frames.

The transforms take all frames of a sample at once, those of every view, so that views cannot differ
in space or colour. Random numbers come from the generator that is passed in. What comes out is
uint8 RGB still; `ffn.data.Normalise` makes floats of it on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from ffn.data.augment import ColourJitter, RandAugment, RandomErasing
from ffn.data.crops import (
    AREA,
    ASPECT,
    JITTER_SCALES,
    SCALES,
    jittered_crop,
    multiscale_crop,
    resized_crop,
    three_squares,
)
from ffn.data.flips import involution
from ffn.data.preprocessing import Preprocessing

CROP_MODES = ("multiscale", "resized", "scale_jitter")
CROPS = (1, 3)  # of a test


class TrainTransform:
    """Random crop, optional flip, and what else changes pixels, in this order.

    As it stands, the training transform of TSN and TSM.

    Args:
        preprocessing: Input size and normalisation.
        crop_mode: `multiscale`, TSN's and TSM's crop; `resized`, random area and shape (UniFormer);
            `scale_jitter`, a random length of the shorter side (SlowFast). See `ffn.data.crops`.
        scales: For `multiscale`, sides of the crop over the shorter side, each above 0 and at most
            1.
        area: For `resized`, least and largest share of the frame.
        aspect: For `resized`, least and largest width over height.
        jitter_scales: For `scale_jitter`, least and largest length of the shorter side, in pixels.
        flip: `none`; `random`, half of the samples are mirrored; `swap`, mirrored ones also get the
            label of the mirrored class, for data where left and right are labels.
        flip_pairs: For `swap`, the pairs of class indices that a mirror exchanges; other classes
            keep their label.
        colour_jitter: Strengths of brightness, contrast, saturation and hue; zeros: off.
        randaugment: timm's policy, as `rand-m7-n4-mstd0.5-inc1`; None: off.
        random_erasing: Probability that a box becomes noise.

    Raises:
        ValueError: if an option is unknown or outside its range, or the pairs do not exchange
            classes one for one.
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
        colour_jitter: Sequence[float] = (0.0, 0.0, 0.0, 0.0),
        randaugment: str | None = None,
        random_erasing: float = 0.0,
    ) -> None:
        if flip not in ("none", "random", "swap"):
            raise ValueError(f"flip is {flip!r}; expected 'none', 'random' or 'swap'")
        if flip == "swap" and not flip_pairs:
            raise ValueError("flip 'swap' needs flip_pairs, as [[0, 1]]; or set flip to 'random'")
        if flip != "swap" and flip_pairs:
            raise ValueError(f"flip_pairs has an effect with flip 'swap' alone; flip is {flip!r}")
        if not 0 <= random_erasing <= 1:
            raise ValueError(f"random_erasing is {random_erasing}; expected a probability, 0 to 1")
        self.preprocessing, self.flip = preprocessing, flip
        self.mirrored = involution(flip_pairs)
        self._crop = _crop(crop_mode, preprocessing.crop, scales, area, aspect, jitter_scales)

        mean, std = preprocessing.mean, preprocessing.std
        if preprocessing.colour == "bgr":  # frames are RGB until they are normalised
            mean, std = mean[::-1], std[::-1]
        self._changes: list[Callable[[Tensor, np.random.Generator], Tensor]] = []
        if any(_strengths(colour_jitter)):
            self._changes.append(ColourJitter(colour_jitter))
        if randaugment is not None:
            fill = [min(255, round(255 * value)) for value in mean]
            self._changes.append(RandAugment(randaugment, fill))
        if random_erasing:
            self._changes.append(RandomErasing(random_erasing, mean, std))

    def __call__(
        self, frames: Tensor, label: int, generator: np.random.Generator
    ) -> tuple[Tensor, int]:
        """Transform all frames of one sample alike.

        Args:
            frames: uint8 RGB of shape (N, H, W, 3).
            label: Class index.
            generator: Source of all draws.

        Returns:
            uint8 RGB frames (N, 3, crop, crop), and the label.
        """
        _check_frames(frames)
        x = frames.permute(0, 3, 1, 2)  # (N, C, H, W)
        x = self._crop(x, generator=generator)
        if self.flip != "none" and generator.random() < 0.5:
            x = F.horizontal_flip(x)
            label = self.mirrored.get(label, label)
        for change in self._changes:
            x = change(x, generator)
        return x, label


class EvalTransform:
    """The squares that a test looks at.

    One crop: the shorter side to `resize` pixels, then the centre of `crop` x `crop` pixels. Three
    crops: the shorter side to `resize` pixels, then squares of that side, `ffn.data.crops`'
    `three_squares`; the network's input has `resize` pixels then. A recipe that tests three crops
    of its training size (UniFormer: 224) says `resize: 224`.

    Args:
        preprocessing: Sizes.
        crops: 1 or 3.

    Raises:
        ValueError: another number of crops.
    """

    def __init__(self, preprocessing: Preprocessing, crops: int = 1) -> None:
        if crops not in CROPS:
            raise ValueError(f"crops is {crops}; expected 1 (centre) or 3 (both ends and centre)")
        self.preprocessing, self.crops = preprocessing, crops

    @property
    def side(self) -> int:
        """Height and width of what comes out, in pixels."""
        return self.preprocessing.crop if self.crops == 1 else self.preprocessing.resize

    def __call__(self, frames: Tensor) -> Tensor:
        """Transform all frames of one sample alike.

        Args:
            frames: uint8 RGB of shape (N, H, W, 3).

        Returns:
            uint8 RGB frames of shape (N, 3, side, side); of three crops (3, N, 3, side, side).
        """
        _check_frames(frames)
        x = frames.permute(0, 3, 1, 2)  # (N, C, H, W)
        if self.crops == 3:
            return three_squares(x, self.side)
        x = F.resize(x, [self.preprocessing.resize], antialias=True)
        return F.center_crop(x, [self.side, self.side])


def _crop(
    mode: str,
    side: int,
    scales: Sequence[float],
    area: Sequence[float],
    aspect: Sequence[float],
    jitter_scales: Sequence[int],
) -> Callable[..., Tensor]:
    """The crop of a mode, its options checked."""
    if mode == "multiscale":
        if not scales or min(scales) <= 0 or max(scales) > 1:
            raise ValueError(f"scales is {list(scales)}; expected numbers above 0 and at most 1")
        return partial(multiscale_crop, side=side, scales=tuple(sorted(scales, reverse=True)))
    if mode == "resized":
        if len(area) != 2 or not 0 < area[0] <= area[1] <= 1:
            raise ValueError(
                f"area is {list(area)}; expected two shares, 0 < least <= largest <= 1"
            )
        if len(aspect) != 2 or not 0 < aspect[0] <= aspect[1]:
            raise ValueError(f"aspect is {list(aspect)}; expected two ratios, 0 < least <= largest")
        return partial(resized_crop, side=side, area=area, aspect=aspect)
    if mode == "scale_jitter":
        if len(jitter_scales) != 2 or not side <= jitter_scales[0] <= jitter_scales[1]:
            raise ValueError(
                f"jitter_scales is {list(jitter_scales)}; expected two lengths in pixels, "
                f"crop {side} <= least <= largest"
            )
        return partial(jittered_crop, side=side, scales=jitter_scales)
    raise ValueError(f"crop_mode is {mode!r}; expected one of {', '.join(CROP_MODES)}")


def _strengths(colour_jitter: Sequence[float]) -> Sequence[float]:
    if len(colour_jitter) != 4 or min(colour_jitter) < 0 or colour_jitter[3] > 0.5:
        raise ValueError(
            f"colour_jitter is {list(colour_jitter)}; expected four strengths of at least 0: "
            "brightness, contrast, saturation, and hue of at most 0.5"
        )
    return colour_jitter


def _check_frames(frames: Tensor) -> None:
    if frames.dtype != torch.uint8 or frames.ndim != 4 or frames.shape[-1] != 3:
        raise ValueError(
            f"frames are {frames.dtype} {tuple(frames.shape)}; expected uint8 (N, H, W, 3)"
        )
