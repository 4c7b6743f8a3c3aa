"""The interface of an opened video, and its error."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ffn.files import without_password
from ffn.limits import frame_refusal


class VideoError(RuntimeError):
    """A video, or one of its frames, that cannot be read.

    Attributes:
        path: The file or folder.
        cause: Why it cannot be read.
        frame: 0-based index of the frame, or None if the error concerns the whole video.
    """

    def __init__(self, path: str, cause: str = "", frame: int | None = None) -> None:
        # DataLoader re-raises an error of a worker with a single argument, its message.
        path = without_password(path)  # an address
        self.path, self.cause, self.frame = path, cause, frame
        where = path if frame is None else f"{path}, frame {frame}"
        super().__init__(f"{where}: {cause}" if cause else where)

    def __reduce__(self) -> tuple:
        return type(self), (self.path, self.cause, self.frame)


class Video(ABC):
    """An opened video: a number of frames, and access to them by index.

    Attributes:
        path: File or folder, for messages.
    """

    path: str

    @abstractmethod
    def __len__(self) -> int:
        """Number of frames."""

    @abstractmethod
    def _images(self, indices: Sequence[int]) -> Mapping[int, np.ndarray]:
        """Pixels by index, uint8 RGB (H, W, 3), for ascending indices."""

    @property
    def times(self) -> np.ndarray | None:
        """Time of each frame in seconds, ascending, (N,) float64; None if frames have no times."""
        return None

    def read(self, indices: Iterable[int]) -> Tensor:
        """Frames at `indices`, in that order; repeated indices are decoded once.

        Returns:
            uint8 RGB of shape (N, H, W, 3).

        Raises:
            VideoError: if an index is outside the video, a frame cannot be decoded, or the frames
                differ in size.
            ValueError: if no frame is requested.
        """
        indices = list(indices)
        if not indices:
            raise ValueError(f"no frame of {self.path} is requested; expected at least one index")
        for index in (min(indices), max(indices)):
            if not 0 <= index < len(self):
                raise VideoError(self.path, f"the video has {len(self)} frames, from 0 on", index)
        images = self._images(sorted({*indices}))
        height, width, _ = images[indices[0]].shape
        if refusal := frame_refusal(width, height):  # a header may give another size
            raise VideoError(self.path, refusal, indices[0])
        for index, image in images.items():
            if image.shape != (height, width, 3):
                cause = f"is {image.shape[1]} x {image.shape[0]} pixels, others {width} x {height}"
                raise VideoError(self.path, cause, index)
        return torch.from_numpy(np.stack([images[i] for i in indices]))

    def in_order(self, indices: Iterable[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Index and pixels, uint8 RGB (H, W, 3), of frames in ascending order, one after another.

        Raises:
            VideoError: if a frame cannot be decoded.
        """
        for index in indices:
            yield index, self.read([index])[0].numpy()

    def between(self, start: float | None, end: float | None) -> range:
        """Indices of the frames shown at a time in [start, end).

        Args:
            start: In seconds after the first frame; None for the start of the video.
            end: In seconds after the first frame; None for the end of the video.

        Raises:
            VideoError: if the range contains no frame, or the frames have no times.
        """
        part, times = f"{start or 0} … {'the end' if end is None else end} s", self.times
        if times is None:
            raise VideoError(self.path, f"its frames have no times; got the part {part}")
        first = 0 if start is None else int(np.searchsorted(times, start - 1e-6))
        stop = len(times) if end is None else int(np.searchsorted(times, end - 1e-6))
        if first >= stop:
            shown = f"{times[0]:.2f} … {times[-1]:.2f} s"
            cause = f"has no frame in the part {part}; its frames start at {shown}"
            raise VideoError(self.path, cause)
        return range(first, stop)
