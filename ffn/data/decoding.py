"""Frames by index, from video files (decord) and from folders of images.

`open_video(path)` returns a `VideoFile` or a `FrameFolder`; both know their length and read any
frames in one pass. Whatever cannot be read raises `VideoError` with the path, the frame and the
cause; a frame is never replaced by another one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    import decord

PATTERN = "{:05d}.jpg"  # the usual name of frame images


class VideoError(RuntimeError):
    """A video, or a frame of it, that cannot be read.

    Attributes:
        path: The file or folder.
        cause: What is wrong with it.
        frame: 0-based index of the frame concerned, or None if it is the whole file.
    """

    def __init__(self, path: str, cause: str = "", frame: int | None = None) -> None:
        # One argument is enough, so that a DataLoader can raise it again in the main process.
        self.path, self.cause, self.frame = path, cause, frame
        where = path if frame is None else f"{path}, frame {frame}"
        super().__init__(f"{where}: {cause}" if cause else where)

    def __reduce__(self) -> tuple:
        return type(self), (self.path, self.cause, self.frame)


class VideoFile:
    """A video file, decoded by decord on one thread.

    A rotation flag is applied, so that frames stand upright; pixels are taken as square.

    Args:
        path: The file.

    Raises:
        VideoError: if there is no such file, it is empty, is no video or holds no video stream.

    Note:
        Every read decodes the file from its first frame to its last. decord's seeking, and with it
        `get_batch`, is wrong by some frames in files with open groups of pictures, in fragmented
        mp4, HEVC and others; and only a complete pass shows whether as many frames decode as the
        container counts, without which none of them is certain to be the one asked for. Segments
        span the whole video anyway; a short part of a long file is better cut out beforehand.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._reader = _open_reader(path)
        self._fresh = True

    def __len__(self) -> int:
        return len(self._reader)

    @property
    def times(self) -> np.ndarray:
        """When each frame is shown, (N,) float64, in seconds."""
        return self._reader.get_frame_timestamp(range(len(self)))[:, 0].astype(np.float64)

    def read(self, indices: Iterable[int]) -> Tensor:
        """Frames at `indices`, in that order; repeated indices are decoded once.

        Returns:
            uint8 RGB of shape (N, H, W, 3).

        Raises:
            VideoError: if an index is outside the video, or any frame of it cannot be decoded.
        """
        import decord

        wanted = list(indices)
        _check_range(self.path, wanted, len(self))
        if not self._fresh:
            self._reader = _open_reader(self.path)
        self._fresh = False
        chosen, images = set(wanted), {}
        for index in range(len(self)):
            try:
                frame = self._reader.next()
                if index in chosen:
                    images[index] = _rgb(frame.asnumpy())
            except (decord.DECORDLimitReachedError, StopIteration):
                cause = f"the file counts {len(self)} frames, but only {index} decode; re-encode it"
                raise VideoError(self.path, cause) from None
            except decord.DECORDError as error:
                # decord decodes ahead, so the frame is a lower bound.
                cause = f"corrupt or cut off, at frame {index} or later ({_short(error)})"
                raise VideoError(self.path, cause) from None
        return _stack(self.path, wanted, images)

    def between(self, start: float | None, end: float | None) -> range:
        """Indices of the frames shown at a time in [start, end), in seconds."""
        times = self.times
        first = 0 if start is None else int(np.searchsorted(times, start - 1e-6))
        stop = len(self) if end is None else int(np.searchsorted(times, end - 1e-6))
        if first >= stop:
            raise VideoError(
                self.path,
                f"has no frame between {start} and {end} s; its frames start at "
                f"{times[0]:.2f} … {times[-1]:.2f} s",
            )
        return range(first, stop)


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
        _check_pattern(pattern)
        if not os.path.isdir(path):
            raise VideoError(path, "no such folder")
        self._first = next((i for i in (0, 1) if os.path.exists(self._name(i))), None)
        if self._first is None:
            raise VideoError(path, self._why_empty())
        self._frames = self._count() if frames is None else frames

    def __len__(self) -> int:
        return self._frames

    @property
    def times(self) -> None:
        """None: images carry no time."""
        return None

    def read(self, indices: Iterable[int]) -> Tensor:
        """Frames at `indices`, in that order; repeated indices are read once.

        Returns:
            uint8 RGB of shape (N, H, W, 3).

        Raises:
            VideoError: if an image is missing, cannot be decoded, or differs in size.
        """
        wanted = list(indices)
        _check_range(self.path, wanted, len(self))
        return _stack(self.path, wanted, {i: self._image(i) for i in sorted(set(wanted))})

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


def open_video(
    path: str | os.PathLike[str], *, pattern: str = PATTERN, frames: int | None = None
) -> VideoFile | FrameFolder:
    """Open a video file or a folder of frames.

    Args:
        path: A file is a video, a folder holds its frames.
        pattern: Name of a frame inside a folder.
        frames: Number of frames in a folder if it is known (annotation lists say it); a video file
            counts its own.

    Returns:
        An object with a length in frames and `read(indices)`.

    Raises:
        VideoError: if it cannot be opened.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        return FrameFolder(path, pattern, frames)
    return VideoFile(path)


def decode(
    path: str | os.PathLike[str], indices: Sequence[int], *, pattern: str = PATTERN
) -> Tensor:
    """Read frames of one video.

    Args:
        path: Video file or folder of frames.
        indices: 0-based frame numbers, in any order, repeats allowed.
        pattern: Name of a frame inside a folder.

    Returns:
        uint8 RGB of shape (N, H, W, 3).

    Raises:
        VideoError: if the video cannot be opened or a frame cannot be read.
    """
    return open_video(path, pattern=pattern).read(indices)


def count_frames(path: str | os.PathLike[str], *, pattern: str = PATTERN) -> int:
    """Count the frames of a video file or a folder of frames.

    Raises:
        VideoError: if it cannot be opened.
    """
    return len(open_video(path, pattern=pattern))


def _open_reader(path: str) -> decord.VideoReader:
    """Open a file with decord, or say why that does not work."""
    if not os.path.exists(path):
        raise VideoError(path, "no such file or folder")
    if os.path.getsize(path) == 0:
        raise VideoError(path, "the file is empty (0 bytes)")
    import decord  # here, since only decoding needs it

    decord.logging.set_level(decord.logging.QUIET)
    try:
        # Above its tolerance decord raises; by default it would repeat frames that do not decode.
        return decord.VideoReader(path, num_threads=1, fault_tol=1e-9)
    except (decord.DECORDError, RuntimeError, AssertionError) as error:
        raise VideoError(path, _why_not_opened(str(error))) from None


def _why_not_opened(message: str) -> str:
    if "cannot find video stream" in message:
        return "the file has no video stream"
    if message.startswith("Error reading"):
        return "not a video, or cut off before its index"
    return f"cannot be opened ({_short(message)})"


def _short(error: object) -> str:
    """What decord says, without times, places in its source and stack trace."""
    return re.split(r"[\])] ", str(error).strip().splitlines()[0])[-1]


def _rgb(frame: np.ndarray) -> np.ndarray:
    """Pixels (H, W, 3) of a frame as decord returns it.

    decord takes the bytes of a row divided by its width for the number of channels. Where the
    padded row is a multiple of the width (96 pixels: 384 bytes) that is 4 or more, and the padding
    comes along; each row still starts with its W pixels.
    """
    height, width, _ = frame.shape
    return frame.reshape(height, -1)[:, : 3 * width].reshape(height, width, 3)


def _check_pattern(pattern: str) -> None:
    try:
        fits = pattern.format(0) != pattern.format(1)
    except (IndexError, KeyError, ValueError):
        fits = False
    if not fits:
        raise ValueError(f"pattern {pattern!r} has no single place for a number; try '{PATTERN}'")


def _check_range(path: str, wanted: Sequence[int], count: int) -> None:
    if not wanted:
        raise ValueError(f"no frame of {path} was asked for")
    if min(wanted) < 0:
        raise VideoError(path, "frames count from 0", min(wanted))
    if max(wanted) >= count:
        raise VideoError(path, f"the video has {count} frames", max(wanted))


def _stack(path: str, wanted: Sequence[int], images: dict[int, np.ndarray]) -> Tensor:
    """Images (H, W, 3) by index as one tensor (N, H, W, 3) in the order of `wanted`."""
    height, width, _ = images[wanted[0]].shape
    for index, image in images.items():
        if image.shape != (height, width, 3):
            cause = f"is {image.shape[1]} x {image.shape[0]} pixels, others {width} x {height}"
            raise VideoError(path, cause, index)
    return torch.from_numpy(np.stack([images[i] for i in wanted]))
