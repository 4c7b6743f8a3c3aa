"""Limits on what a file may ask for: a wrong or hostile one is refused before memory is spent.

Each limit can be raised by the environment variable of its name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Limit:
    """The largest number that is accepted.

    Attributes:
        variable: environment variable with another number.
        default: number without the variable.
        unit: what is counted, in the plural.
    """

    variable: str
    default: int
    unit: str

    @property
    def value(self) -> int:
        """The largest number now.

        Raises:
            ValueError: the variable does not hold a whole number above 0.
        """
        text = os.environ.get(self.variable, str(self.default))
        if not text.isdecimal() or int(text) < 1:
            raise ValueError(f"{self.variable} is {text!r}; expected a whole number above 0")
        return int(text)

    def refusal(self, number: float) -> str:
        """Why a number is not accepted; empty if it is."""
        if number <= self.value:
            return ""
        shown = f"{number:,}" if number < 1e15 else f"{float(number):.0e}"
        return (
            f"{shown} {self.unit}; at most {self.value:,} are accepted (raise the limit with the "
            f"environment variable {self.variable})"
        )


def frame_refusal(width: int, height: int) -> str:
    """Why frames of a size in pixels are not read; empty if they are."""
    if max(width, height) > LONGEST_SIDE * min(width, height):
        return f"{width} x {height} pixels: at most {LONGEST_SIDE} times as long as wide is read"
    refusal = FRAME_PIXELS.refusal(width * height)
    return refusal and f"{width} x {height} pixels: {refusal}"


LONGEST_SIDE = 32  # times the shorter one: resizing the shorter side enlarges the longer one
FRAME_PIXELS = Limit("FFN_MAX_FRAME_PIXELS", 2**25, "pixels per frame")  # 8K UHD has 33.2 million
VIDEO_FRAMES = Limit("FFN_MAX_VIDEO_FRAMES", 2**23, "frames per video")  # 38 hours of 60 per second
CLIP_FRAMES = Limit("FFN_MAX_CLIP_FRAMES", 4096, "frames per clip")
READER_BYTES = Limit("FFN_MAX_READER_BYTES", 2**32, "bytes")  # 64 frames of 4K, also as a clip
CLASSES = Limit("FFN_MAX_CLASSES", 100_000, "classes")
TRAINED_COUNTS = Limit("FFN_MAX_TRAINED_COUNTS", 64, "trained frame counts")
RECORD_BYTES = Limit("FFN_MAX_RECORD_BYTES", 2**23, "bytes")  # 100,000 class names fit
DOWNLOAD_BYTES = Limit("FFN_MAX_DOWNLOAD_BYTES", 2**36, "bytes")  # of a file of unknown size
