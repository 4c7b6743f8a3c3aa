"""Frames of a video as images in a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import numpy as np
from torch import Tensor

from ffn.data.decoding.errors import VideoError, check_range, stack

PATTERN = "{:05d}.jpg"  # the usual name of frame images


class FrameFolder:
    """A folder with one image per frame, numbered from 0 or from 1.

    Args:
        path: The folder.
        pattern: Name of a frame, as `{:05d}.jpg` or `img_{:05d}.png`.
        frames: Number of frames if it is known, which saves listing the folder.

    Raises:
        VideoError: if there is no such folder, it holds no image of that name, or has a gap.
        ValueError: if `pattern` has no field for the number.
    """

    def __init__(self, path: str, pattern: str = PATTERN, frames: int | None = None) -> None:
        self.path, self.pattern = path, pattern
        check_pattern(pattern)
        if not os.path.isdir(path):
            raise VideoError(path, "no such folder")
        self._first = next((i for i in (0, 1) if os.path.exists(self._name(i))), None)
        if self._first is None:
            raise VideoError(path, self._why_empty())
        self._frames = self._count() if frames is None else frames

    def __len__(self) -> int:
        return self._frames

    def read(self, indices: Iterable[int]) -> Tensor:
        """Frames at `indices`, in that order; repeated indices are read once.

        Returns:
            uint8 RGB of shape (N, H, W, 3).

        Raises:
            VideoError: if an image is missing, cannot be decoded, or differs in size.
        """
        wanted = list(indices)
        check_range(self.path, wanted, len(self))
        return stack(self.path, wanted, {i: self._image(i) for i in sorted(set(wanted))})

    def between(self, start: float | None, end: float | None) -> range:
        """Refuse a time range, since images carry no time.

        Raises:
            VideoError: always.
        """
        raise VideoError(self.path, f"a folder of frames has no times; got {start} … {end} s")

    def _name(self, number: int) -> str:
        return os.path.join(self.path, self.pattern.format(number))

    def _image(self, index: int) -> np.ndarray:
        from PIL import Image

        name = self._name(self._first + index)
        try:
            with Image.open(name) as image:
                return np.asarray(image.convert("RGB"))
        except FileNotFoundError:
            raise VideoError(self.path, f"{os.path.basename(name)} is missing", index) from None
        except (OSError, SyntaxError, ValueError) as error:
            cause = f"{os.path.basename(name)} is no readable image ({error})"
            raise VideoError(self.path, cause, index) from None

    def _numbers(self) -> list[int]:
        """Numbers of all images whose name follows the pattern, ascending."""
        head, tail = re.split(r"\{.*?\}", self.pattern, maxsplit=1)
        form = re.compile(re.escape(head) + r"(\d+)" + re.escape(tail))
        found = (form.fullmatch(name) for name in os.listdir(self.path))
        return sorted(int(m[1]) for m in found if m and self.pattern.format(int(m[1])) == m[0])

    def _count(self) -> int:
        numbers = self._numbers()
        for place, number in enumerate(numbers):
            if number != self._first + place:
                missing = self.pattern.format(self._first + place)
                raise VideoError(self.path, f"{missing} is missing", place)
        return len(numbers)

    def _why_empty(self) -> str:
        names = sorted(os.listdir(self.path))
        if not names:
            return "the folder is empty"
        return (
            f"no image {self.pattern.format(0)} or {self.pattern.format(1)}; "
            f"the folder holds {len(names)} names, the first is {names[0]}"
        )


def check_pattern(pattern: str) -> None:
    """Refuse a name of frames that has no place for their number.

    Raises:
        ValueError: if it has none, or more than one.
    """
    try:
        fits = pattern.format(0) != pattern.format(1)
    except (IndexError, KeyError, ValueError):
        fits = False
    if not fits:
        raise ValueError(f"pattern {pattern!r} has no single place for a number; try '{PATTERN}'")
