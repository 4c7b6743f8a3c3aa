"""What a predictor reads: video files, folders of frames, encoded videos in memory, and frames."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from ffn.data import open_video
from ffn.data.decoding import Video, VideoError
from ffn.data.decoding.video import check_indices

Input = str | os.PathLike | bytes | bytearray | memoryview | np.ndarray | Tensor

ALLOWED = (
    "the path of a video file or of a folder of frames, the bytes of a video file, or uint8 frames "
    "(T, H, W, 3) or (T, 3, H, W) as an array or a tensor"
)


class FramesInMemory:
    """Decoded frames as a video.

    Args:
        frames: RGB, uint8, (T, H, W, 3) or (T, 3, H, W). If both fit, it is the first.

    Raises:
        TypeError: if the numbers are not uint8.
        ValueError: if the shape is another one, or there is no frame.
    """

    def __init__(self, frames: np.ndarray | Tensor) -> None:
        shape, kind = tuple(frames.shape), str(frames.dtype).removeprefix("torch.")
        if kind != "uint8":
            raise TypeError(
                f"the frames are {kind}; expected uint8, 0 to 255, before any normalisation. For "
                "a clip that is normalised already, run predictor.model"
            )
        if len(shape) != 4 or 3 not in (shape[1], shape[3]) or 0 in shape:
            raise ValueError(
                f"the frames have shape {shape}; expected (T, H, W, 3) or (T, 3, H, W)"
            )
        if isinstance(frames, np.ndarray):
            frames = torch.from_numpy(np.array(frames))  # a copy: the array may be read-only
        self.frames = frames.detach().cpu()
        if shape[3] != 3:
            self.frames = self.frames.permute(0, 2, 3, 1)
        self.path = f"{shape[0]} frames in memory"

    def __len__(self) -> int:
        """Number of frames."""
        return len(self.frames)

    def read(self, indices: Iterable[int]) -> Tensor:
        """Frames at `indices`, uint8 RGB (N, H, W, 3)."""
        indices = list(indices)
        check_indices(self.path, indices, len(self))
        return self.frames[indices].contiguous()

    def between(self, start: float | None, end: float | None) -> range:
        """Raise VideoError: the frames have no times."""
        raise VideoError(self.path, f"frames in memory have no times; got {start} … {end} s")


@contextmanager
def open_input(given: Input, *, pattern: str) -> Iterator[tuple[str, Video]]:
    """Open what a predictor got; gives its name for people, and the video.

    Args:
        given: see `ALLOWED`. Bytes are in a temporary file until the context ends.
        pattern: file names in a folder of frames.

    Raises:
        VideoError: if the video cannot be opened.
        TypeError: if it is something else, or frames that are not uint8.
        ValueError: if frames have another shape.
    """
    if isinstance(given, (bytes, bytearray, memoryview)):
        name = f"{len(given):,} bytes"
        with tempfile.TemporaryDirectory(prefix="ffn-") as folder:
            path = os.path.join(folder, "video")
            with open(path, "wb") as file:
                file.write(given)
            try:
                yield name, open_video(path)
            except VideoError as error:  # the path of the file in the folder says nothing
                raise VideoError(name, error.cause, error.frame) from error
    elif isinstance(given, (np.ndarray, Tensor)):
        video = FramesInMemory(given)
        yield video.path, video
    elif isinstance(given, (str, os.PathLike)):
        yield os.fspath(given), open_video(given, pattern=pattern)
    else:
        raise TypeError(f"the video is a {type(given).__name__}; expected {ALLOWED}")


def seconds_of(video: Video) -> float | None:
    """Duration of a video in seconds; None if its frames have no times, or there is one frame."""
    timeline = getattr(video, "timeline", None)
    if timeline is None or len(timeline) < 2 or not timeline.seconds[-1]:
        return None
    return float(timeline.seconds[-1]) * len(timeline) / (len(timeline) - 1)
