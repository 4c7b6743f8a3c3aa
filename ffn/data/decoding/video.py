"""The interface of an opened video, its error, and helpers shared by its implementations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Video(Protocol):
    """An opened video: a number of frames, and access to them by index."""

    path: str

    def __len__(self) -> int:
        """Number of frames."""

    def read(self, indices: Iterable[int]) -> Tensor:
        """Frames at `indices`, in that order, uint8 RGB (N, H, W, 3)."""

    def between(self, start: float | None, end: float | None) -> range:
        """Indices of the frames shown at a time in [start, end), in seconds."""


class VideoError(RuntimeError):
    """A video, or one of its frames, that cannot be read.

    Attributes:
        path: The file or folder.
        cause: Why it cannot be read.
        frame: 0-based index of the frame, or None if the error concerns the whole video.
    """

    def __init__(self, path: str, cause: str = "", frame: int | None = None) -> None:
        # DataLoader re-raises an error of a worker with a single argument, its message.
        self.path, self.cause, self.frame = path, cause, frame
        where = path if frame is None else f"{path}, frame {frame}"
        super().__init__(f"{where}: {cause}" if cause else where)

    def __reduce__(self) -> tuple:
        return type(self), (self.path, self.cause, self.frame)


def frames_in_order(video: Video, indices: Iterable[int]) -> Iterator[tuple[int, np.ndarray]]:
    """Index and pixels, uint8 RGB (H, W, 3), of frames in ascending order, one after another.

    Raises:
        VideoError: if a frame cannot be decoded.
    """
    if hasattr(video, "in_order"):  # a file is decoded once
        yield from video.in_order(indices)
    else:
        for index in indices:
            yield index, video.read([index])[0].numpy()


def check_indices(path: str, indices: Sequence[int], count: int) -> None:
    """Check that all indices are inside a video of `count` frames.

    Raises:
        ValueError: if `indices` is empty.
        VideoError: if an index is outside the video.
    """
    if not indices:
        raise ValueError(f"no frame of {path} is requested; expected at least one index")
    if min(indices) < 0:
        raise VideoError(path, "frames count from 0", min(indices))
    if max(indices) >= count:
        raise VideoError(path, f"the video has {count} frames", max(indices))


def stack_frames(path: str, indices: Sequence[int], images: dict[int, np.ndarray]) -> Tensor:
    """Stack images in the order of `indices`.

    Args:
        path: The video, for messages.
        indices: Indices of the frames; repeats are allowed.
        images: By index, uint8 (H, W, 3).

    Returns:
        uint8 of shape (N, H, W, 3).

    Raises:
        VideoError: if the images differ in size.
    """
    height, width, _ = images[indices[0]].shape
    for index, image in images.items():
        if image.shape != (height, width, 3):
            cause = f"is {image.shape[1]} x {image.shape[0]} pixels, others {width} x {height}"
            raise VideoError(path, cause, index)
    return torch.from_numpy(np.stack([images[i] for i in indices]))


def frames_between(
    path: str, times: np.ndarray | None, start: float | None, end: float | None
) -> range:
    """Indices of the frames shown at a time in [start, end).

    Args:
        path: The video, for messages.
        times: Time of each frame in seconds, ascending; None if unknown.
        start: In seconds; None for the start of the video.
        end: In seconds; None for the end of the video.

    Raises:
        VideoError: if the range contains no frame, or the frames have no times.
    """
    part = f"{start or 0} … {'the end' if end is None else end} s"
    if times is None or (len(times) > 1 and not times[-1]):
        raise VideoError(path, f"its frames have no times; got the part {part}")
    first = 0 if start is None else int(np.searchsorted(times, start - 1e-6))
    stop = len(times) if end is None else int(np.searchsorted(times, end - 1e-6))
    if first >= stop:
        cause = (
            f"has no frame in the part {part}; "
            f"its frames start at {times[0]:.2f} … {times[-1]:.2f} s"
        )
        raise VideoError(path, cause)
    return range(first, stop)
