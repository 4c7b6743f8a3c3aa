"""Preprocessing parameters of a network, and normalization of clips on the device."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ffn.data.sampling import RULES
from ffn.limits import FRAME_PIXELS


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing parameters of a network; stored with its weights.

    Attributes:
        crop: Height and width of the network's input, in pixels.
        resize: Length of the shorter side before the center crop in tests, in pixels.
        mean: Per channel, on a scale of 0 to 1, in the order of `color`.
        std: Per channel, on a scale of 0 to 1, in the order of `color`.
        color: `rgb` or `bgr`.
        sampling: Rule that selects the frames, one of `ffn.data.sampling.RULES`.
        span: Frames of a video that a clip spans, so that T frames are one rate for all videos. A
            shorter video holds its last frame, so that norms see frames of videos alone, and a clip
            does not depend on others. 0: all frames of the video.
    """

    crop: int = 224
    resize: int = 256
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    color: str = "rgb"
    sampling: str = "segment"
    span: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(float(x) for x in self.mean))
        object.__setattr__(self, "std", tuple(float(x) for x in self.std))
        sizes = (self.crop, self.resize)
        if not all(isinstance(size, int) for size in sizes) or not 1 <= self.crop <= self.resize:
            raise ValueError(
                f"crop is {self.crop!r} and resize {self.resize!r}; expected whole numbers, "
                "1 <= crop <= resize"
            )
        refusal = FRAME_PIXELS.refusal(self.resize**2)
        if refusal:
            raise ValueError(f"resize {self.resize} gives {refusal}")
        if len(self.mean) != 3 or not all(map(math.isfinite, self.mean)):
            raise ValueError(f"mean is {list(self.mean)}; expected three numbers")
        if len(self.std) != 3 or not all(0 < value < math.inf for value in self.std):
            raise ValueError(f"std is {list(self.std)}; expected three numbers above 0")
        if self.color not in ("rgb", "bgr"):
            raise ValueError(f"color is {self.color!r}; expected 'rgb' or 'bgr'")
        if not isinstance(self.span, int) or self.span < 0:
            raise ValueError(f"span is {self.span!r}; expected a number of frames, or 0 for all")
        if self.sampling not in RULES:
            raise ValueError(f"sampling is {self.sampling!r}; expected one of {', '.join(RULES)}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and lists, for JSON, YAML and checkpoints."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Preprocessing:
        """Build from the result of `to_dict`.

        Raises:
            ValueError: if a key is unknown or missing, or a value is not allowed.
        """
        values = {"span": 0, **values}  # records of older networks have none
        known = [field.name for field in fields(cls)]
        if {*values} != {*known}:
            raise ValueError(f"preprocessing has {', '.join(values)}; expected {', '.join(known)}")
        return cls(**values)


class Normalize:
    """Convert uint8 clips to the float input of a network, on the device of the clip.

    Data sets return uint8, which needs a quarter of the bytes of float32 in worker queues, in
    pinned memory and in the copy to the device.

    Args:
        preprocessing: Order of the channels, mean and standard deviation.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing
        self._constants: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __call__(self, clip: Tensor) -> Tensor:
        """Order the channels, scale to 0 … 1, subtract the mean, divide by the standard deviation.

        Args:
            clip: uint8 RGB of shape (B, C, T, H, W).

        Returns:
            float32 of the same shape.

        Raises:
            ValueError: if the clip has another dtype or shape.
        """
        if clip.dtype != torch.uint8 or clip.ndim != 5 or clip.shape[1] != 3:
            raise ValueError(
                f"clip is {clip.dtype} {tuple(clip.shape)}; expected uint8 RGB (B, 3, T, H, W), as "
                "from VideoDataset. Pass a clip that is already normalized to the network directly"
            )
        mean, std = self._constants_on(clip.device)

        x = clip.flip(1) if self.preprocessing.color == "bgr" else clip
        x = x.to(torch.float32).mul_(1 / 255)
        return x.sub_(mean).div_(std)

    def _constants_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (C, 1, 1, 1); cached, since a copy to a GPU synchronizes."""
        if device not in self._constants:
            both = (self.preprocessing.mean, self.preprocessing.std)
            mean, std = (torch.tensor(v, device=device).view(3, 1, 1, 1) for v in both)
            self._constants[device] = mean, std
        return self._constants[device]
