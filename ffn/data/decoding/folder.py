"""Read the frames of a video from a folder with one image per frame."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence

import numpy as np

from ffn.data.decoding.names import PATTERN, check_pattern, find_names
from ffn.data.decoding.video import Video, VideoError
from ffn.limits import frame_refusal

BITS, WHITE_IS_ZERO = 258, 262  # tags of TIFF: bits per value, and 0 where 0 is white


class FrameFolder(Video):
    """A folder with one image per frame, numbered from 0 or from 1, or by any numbers.

    Args:
        path: The folder.
        pattern: Name of a frame, e.g. `{:05d}.jpg` or `img_{:05d}.png`; or with `*` for numbers
            that start elsewhere or have gaps, e.g. `*-color.png`.
        frames: Number of frames if it is known; it avoids listing the folder, without `*`.

    Raises:
        VideoError: if the folder does not exist, contains no frame, or a frame is missing.
        ValueError: if `pattern` does not contain exactly one field for the number, nor `*`.
    """

    def __init__(self, path: str, pattern: str = PATTERN, frames: int | None = None) -> None:
        self.path, self.pattern = path, pattern
        check_pattern(pattern)
        if not os.path.isdir(path):
            raise VideoError(path, "no such folder")
        self._first = None
        if frames is not None and "*" not in pattern:
            paths = (os.path.join(path, pattern.format(number)) for number in (0, 1))
            self._first = next((i for i, one in enumerate(paths) if os.path.exists(one)), None)
        self._names = find_names(path, pattern) if self._first is None else []
        self._frames = len(self._names) if frames is None else frames

    def __len__(self) -> int:
        return self._frames

    def _images(self, indices: Sequence[int]) -> dict[int, np.ndarray]:
        return {index: self._read_image(index) for index in indices}

    def _read_image(self, index: int) -> np.ndarray:
        shown = self._name(index)
        path = os.path.join(self.path, shown)
        if not os.path.isfile(path):  # a pipe would be waited for
            cause = "is not a regular file" if os.path.exists(path) else "is missing"
            raise VideoError(self.path, f"{shown} {cause}", index)
        try:
            return read_image(path)
        except ValueError as error:
            cause = f"{shown} is not a readable image ({error})"
            raise VideoError(self.path, cause, index) from None

    def _name(self, index: int) -> str:
        """File name of a frame."""
        if self._first is not None:
            return self.pattern.format(self._first + index)
        if index < len(self._names):
            return self._names[index]
        cause = f"only {len(self._names)} files match {self.pattern!r}"
        raise VideoError(self.path, cause, index)


def read_image(path: str) -> np.ndarray:
    """Pixels of an image, uint8 RGB (H, W, 3), with its EXIF orientation applied.

    Values of 16 bits are scaled: 65535 becomes 255. Transparency is ignored.

    Raises:
        ValueError: if the file is no image, is damaged or too large, or its values are floats or
            32-bit integers, whose range is unknown.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        # Of an opened file: Pillow scrambles the rows of some turned TIFFs that it opens by path.
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(file)
            if refusal := frame_refusal(*image.size):
                raise ValueError(refusal)
            tags = getattr(image, "tag_v2", {})
            largest = 2 ** tags.get(BITS, (16,))[0] - 1  # of gray values of more than 8 bits
            inverted = tags.get(WHITE_IS_ZERO) == 0
            ImageOps.exif_transpose(image, in_place=True)
            if image.mode in ("I", "F"):
                unknown = "its values are floats or 32-bit integers, of an unknown range"
                raise ValueError(f"{unknown}; scale all images of a video to 8 or 16 bits")
            if image.mode.startswith("I;16"):
                gray = np.asarray(image) / largest
                gray = np.rint(255 * (1 - gray if inverted else gray))
                image = Image.fromarray(gray.astype(np.uint8))
            return np.asarray(image.convert("RGB"))
    except UnidentifiedImageError:
        raise ValueError("not an image that Pillow reads; convert it to PNG or JPEG") from None
    except Exception as error:  # of damaged data, in any plugin of Pillow
        raise ValueError(str(error)) from None
