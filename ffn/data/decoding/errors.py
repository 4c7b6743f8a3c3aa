"""The one error of unreadable videos, and the checks that all readers share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


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


def check_range(path: str, wanted: Sequence[int], count: int) -> None:
    """Refuse indices outside a video of `count` frames.

    Raises:
        ValueError: if nothing is wanted.
        VideoError: if an index lies outside.
    """
    if not wanted:
        raise ValueError(f"no frame of {path} was asked for")
    if min(wanted) < 0:
        raise VideoError(path, "frames count from 0", min(wanted))
    if max(wanted) >= count:
        raise VideoError(path, f"the video has {count} frames", max(wanted))


def stack(path: str, wanted: Sequence[int], images: dict[int, np.ndarray]) -> Tensor:
    """Images uint8 (H, W, 3) by index as one tensor (N, H, W, 3) in the order of `wanted`.

    Raises:
        VideoError: if the images differ in size.
    """
    height, width, _ = images[wanted[0]].shape
    for index, image in images.items():
        if image.shape != (height, width, 3):
            cause = f"is {image.shape[1]} x {image.shape[0]} pixels, others {width} x {height}"
            raise VideoError(path, cause, index)
    return torch.from_numpy(np.stack([images[i] for i in wanted]))
