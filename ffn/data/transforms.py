"""From decoded frames to a network's clip: one crop, one flip, one normalisation for all frames.

The transforms take all frames of a sample at once, those of every view, so that views cannot differ
in space. Random numbers come from the generator that is passed in; the pixels are moved by
torchvision's transforms v2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from ffn.data.sampling import RULES

SCALES = (1.0, 0.875, 0.75, 0.66)  # TSN (Wang et al. 2016), section 3.1; TSM


@dataclass(frozen=True)
class Preprocessing:
    """What has to happen to a video before a network may see it; travels with its weights.

    Attributes:
        crop: Height and width of the network's input, in pixels.
        resize: Length of the shorter side before the centre crop of a test, in pixels.
        mean: Per channel, on a scale of 0 to 1, in the order of `colour`.
        std: Per channel, likewise.
        colour: `rgb` or `bgr`.
        sampling: Rule that picks the frames, one of `ffn.data.sampling.RULES`.
    """

    crop: int = 224
    resize: int = 256
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    colour: str = "rgb"
    sampling: str = "segment"

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(float(x) for x in self.mean))
        object.__setattr__(self, "std", tuple(float(x) for x in self.std))
        if self.crop < 1 or self.resize < self.crop:
            raise ValueError(
                f"crop {self.crop} does not fit into resize {self.resize}; "
                "expected 1 <= crop <= resize"
            )
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError(
                f"mean {self.mean} and std {self.std}: expected three numbers each, std above 0"
            )
        if self.colour not in ("rgb", "bgr"):
            raise ValueError(f"colour is {self.colour!r}; expected 'rgb' or 'bgr'")
        if self.sampling not in RULES:
            raise ValueError(f"sampling is {self.sampling!r}; expected one of {', '.join(RULES)}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and lists, fit for JSON, YAML and checkpoints."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Preprocessing:
        """Build from what `to_dict` returned.

        Raises:
            ValueError: if a key is unknown or missing, or a value is not allowed.
        """
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                close = get_close_matches(key, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
                raise ValueError(f"preprocessing has no {key!r}; {hint}")
        missing = [name for name in known if name not in values]
        if missing:
            raise ValueError(f"preprocessing lacks {', '.join(missing)}")
        return cls(**values)


class TrainTransform:
    """Random multi-scale crop, optional flip, normalisation: the training transform of TSN and TSM.

    Args:
        preprocessing: Input size and normalisation.
        scales: Sides of the crop over the shorter side, descending, each above 0 and at most 1.
        flip: `none`; `random`, half of the samples are mirrored; `swap`, mirrored ones also get the
            label of the mirrored class, for data where left and right are labels.
        flip_pairs: For `swap`, the pairs of class indices that a mirror exchanges; other classes
            keep their label.

    Raises:
        ValueError: if `flip` is unknown, or the pairs do not exchange classes one for one.
    """

    def __init__(
        self,
        preprocessing: Preprocessing,
        *,
        scales: Sequence[float] = SCALES,
        flip: str = "none",
        flip_pairs: Sequence[Sequence[int]] = (),
    ) -> None:
        if flip not in ("none", "random", "swap"):
            raise ValueError(f"flip is {flip!r}; expected 'none', 'random' or 'swap'")
        if flip == "swap" and not flip_pairs:
            raise ValueError("flip 'swap' needs flip_pairs, as [[0, 1]]; or set flip to 'random'")
        if flip != "swap" and flip_pairs:
            raise ValueError(f"flip_pairs has an effect with flip 'swap' alone; flip is {flip!r}")
        if not scales or min(scales) <= 0 or max(scales) > 1:
            raise ValueError(f"scales is {list(scales)}; expected numbers above 0 and at most 1")
        self.preprocessing, self.flip = preprocessing, flip
        self.scales = tuple(sorted(scales, reverse=True))
        self.mirrored = _involution(flip_pairs)

    def __call__(
        self, frames: Tensor, label: int, generator: np.random.Generator
    ) -> tuple[Tensor, int]:
        """Transform all frames of one sample alike.

        Args:
            frames: uint8 RGB of shape (N, H, W, 3).
            label: Class index.
            generator: Source of the draws of crop and flip.

        Returns:
            Frames as float (N, 3, crop, crop), and the label.
        """
        _check_frames(frames)
        crop = self.preprocessing.crop
        top, left, height, width = draw_crop(*frames.shape[1:3], generator, self.scales)

        x = frames.permute(0, 3, 1, 2)  # (N, C, H, W)
        x = F.resized_crop(x, top, left, height, width, [crop, crop], antialias=True)
        if self.flip != "none" and generator.random() < 0.5:
            x = F.horizontal_flip(x)
            label = self.mirrored.get(label, label)
        return _normalise(x, self.preprocessing), label


class EvalTransform:
    """Shorter side to `resize`, centre crop, normalisation.

    Args:
        preprocessing: Sizes and normalisation.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing

    def __call__(self, frames: Tensor) -> Tensor:
        """Transform all frames of one sample alike.

        Args:
            frames: uint8 RGB of shape (N, H, W, 3).

        Returns:
            Float frames of shape (N, 3, crop, crop).
        """
        _check_frames(frames)
        crop = self.preprocessing.crop

        x = frames.permute(0, 3, 1, 2)  # (N, C, H, W)
        x = F.resize(x, [self.preprocessing.resize], antialias=True)
        x = F.center_crop(x, [crop, crop])
        return _normalise(x, self.preprocessing)


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


def swap_pairs(pairs: Sequence[Sequence[int | str]], classes: Sequence[str]) -> list[list[int]]:
    """Turn pairs of class names or indices into pairs of indices.

    Args:
        pairs: As `[["left", "right"], [4, 5]]`.
        classes: All class names.

    Returns:
        The same pairs as indices.

    Raises:
        ValueError: if a name or index is not a class, or pairs do not exchange one for one.
    """
    indices = [[_class_index(one, classes) for one in pair] for pair in pairs]
    _involution(indices)
    return indices


def _class_index(one: int | str, classes: Sequence[str]) -> int:
    if isinstance(one, str):
        if one not in classes:
            close = get_close_matches(one, classes, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {len(classes)} classes"
            raise ValueError(f"flip_pairs names {one!r}, which is not a class; {hint}")
        return list(classes).index(one)
    if not 0 <= one < len(classes):
        raise ValueError(f"flip_pairs holds class {one}; expected 0 … {len(classes) - 1}")
    return one


def _involution(pairs: Sequence[Sequence[int]]) -> dict[int, int]:
    """The mapping that exchanges each pair; applying it twice changes nothing."""
    mapping: dict[int, int] = {}
    for pair in pairs:
        if len(pair) != 2 or pair[0] == pair[1]:
            raise ValueError(f"flip_pairs holds {list(pair)}; expected two different classes")
        for one, other in (tuple(pair), tuple(pair)[::-1]):
            if one in mapping:
                raise ValueError(
                    f"flip_pairs names class {one} twice, with {mapping[one]} and {other}; "
                    "a class can be exchanged with one other only"
                )
            mapping[one] = other
    return mapping


def _check_frames(frames: Tensor) -> None:
    if frames.dtype != torch.uint8 or frames.ndim != 4 or frames.shape[-1] != 3:
        raise ValueError(
            f"frames are {frames.dtype} {tuple(frames.shape)}; expected uint8 (N, H, W, 3)"
        )


def _normalise(x: Tensor, preprocessing: Preprocessing) -> Tensor:
    if preprocessing.colour == "bgr":
        x = x.flip(1)
    x = F.to_dtype(x, torch.float32, scale=True)
    return F.normalize(x, list(preprocessing.mean), list(preprocessing.std), inplace=True)
