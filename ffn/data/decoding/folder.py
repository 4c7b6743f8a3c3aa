"""Read the frames of a video from a folder with one image per frame."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence

import numpy as np

from ffn.data.decoding.video import Video, VideoError
from ffn.limits import frame_refusal

PATTERN = "{:05d}.jpg"  # default name of a frame


class FrameFolder(Video):
    """A folder with one image per frame, numbered from 0 or from 1.

    Args:
        path: The folder.
        pattern: Name of a frame, e.g. `{:05d}.jpg` or `img_{:05d}.png`.
        frames: Number of frames if it is known; it avoids listing the folder.

    Raises:
        VideoError: if the folder does not exist, contains no frame, or a frame is missing.
        ValueError: if `pattern` does not contain exactly one field for the number.
    """

    def __init__(self, path: str, pattern: str = PATTERN, frames: int | None = None) -> None:
        self.path, self.pattern = path, pattern
        check_pattern(pattern)
        if not os.path.isdir(path):
            raise VideoError(path, "no such folder")
        self._first = next((i for i in (0, 1) if os.path.exists(self._file_name(i))), None)
        if self._first is None:
            raise VideoError(path, self._why_empty())
        self._frames = self._count() if frames is None else frames

    def __len__(self) -> int:
        return self._frames

    def _images(self, indices: Sequence[int]) -> dict[int, np.ndarray]:
        return {index: self._read_image(index) for index in indices}

    def _file_name(self, number: int) -> str:
        return os.path.join(self.path, self.pattern.format(number))

    def _read_image(self, index: int) -> np.ndarray:
        from PIL import Image

        name = self._file_name(self._first + index)
        shown = os.path.basename(name)
        if not os.path.isfile(name):  # a pipe would be waited for
            cause = "is not a regular file" if os.path.exists(name) else "is missing"
            raise VideoError(self.path, f"{shown} {cause}", index)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                image = Image.open(name)
            with image:
                if refusal := frame_refusal(*image.size):
                    raise VideoError(self.path, f"{shown} has {refusal}", index)
                return np.asarray(image.convert("RGB"))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            cause = f"{shown} is not a readable image ({error})"
            raise VideoError(self.path, cause, index) from None

    def _count(self) -> int:
        """Number of images whose name matches the pattern; they have no gap."""
        prefix, suffix = map(re.escape, re.split(r"\{.*?\}", self.pattern, maxsplit=1))
        matches = (re.fullmatch(rf"{prefix}(\d+){suffix}", name) for name in os.listdir(self.path))
        numbers = {int(m[1]) for m in matches if m and self.pattern.format(int(m[1])) == m[0]}
        for index in range(len(numbers)):
            if self._first + index not in numbers:
                missing = self.pattern.format(self._first + index)
                raise VideoError(self.path, f"{missing} is missing", index)
        return len(numbers)

    def _why_empty(self) -> str:
        names = sorted(os.listdir(self.path))
        if not names:
            return "the folder is empty"
        expected = f"{self.pattern.format(0)} or {self.pattern.format(1)}"
        return (
            f"no image {expected}; the folder contains {len(names)} entries, the first is "
            f"{names[0]}. Give the pattern of its names, e.g. img_{{:05d}}.png: "
            "data.frame_pattern in a config, --pattern in a command, pattern= in Python"
        )


def check_pattern(pattern: str) -> None:
    """Check that a name pattern contains exactly one field for the number of a frame.

    Raises:
        ValueError: if it does not.
    """
    try:
        valid = pattern.format(0) != pattern.format(1)
    except (IndexError, KeyError, ValueError):
        valid = False
    if not valid:
        raise ValueError(
            f"pattern is {pattern!r}; expected exactly one field for the number, e.g. '{PATTERN}'"
        )
