"""What a predictor reads: video files, folders of frames, encoded videos in memory, and frames."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from ffn.data import StoredVideo, open_video
from ffn.data.decoding import Video, VideoError
from ffn.data.store import remote
from ffn.files import explain, without_password
from ffn.limits import DOWNLOAD_BYTES

CHUNK = 1 << 20  # bytes of a download
Input = str | os.PathLike | bytes | bytearray | memoryview | np.ndarray | Tensor | StoredVideo

ALLOWED = (
    "the path of a video file or of a folder of frames, an address as https://host/video.mp4, the "
    "bytes of a video file, uint8 frames (T, H, W, 3) or (T, 3, H, W) as an array or a tensor, or "
    "a video of a clip store, from ClipStore.open"
)


class FramesInMemory(Video):
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
                f"the frames are {kind}; expected uint8, 0 to 255, before any normalization; of "
                "16 bits, frames // 257. For a normalized clip, run predictor.model"
            )
        if len(shape) != 4 or 3 not in (shape[1], shape[3]) or 0 in shape:
            raise ValueError(
                f"the frames have shape {shape}; expected (T, H, W, 3) or (T, 3, H, W) of one video"
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

    def _images(self, indices: Sequence[int]) -> dict[int, np.ndarray]:
        return {index: self.frames[index].numpy() for index in indices}


@contextmanager
def open_input(given: Input, *, pattern: str) -> Iterator[tuple[str, Video]]:
    """Open what a predictor got; gives its name for people, and the video.

    Args:
        given: see `ALLOWED`. Bytes, and a video at an address, are in a temporary file until the
            context ends.
        pattern: file names in a folder of frames.

    Raises:
        VideoError: if the video cannot be downloaded or opened.
        TypeError: if it is something else, or frames that are not uint8.
        ValueError: if frames have another shape.
    """
    if isinstance(given, (bytes, bytearray, memoryview)):
        with _as_file(f"{len(given):,} bytes", lambda path: path.write_bytes(given)) as opened:
            yield opened
    elif isinstance(given, str) and is_address(given):
        name = without_password(given)
        with _as_file(name, lambda path: _fetch(given, path)) as opened:
            yield opened
    elif isinstance(given, (np.ndarray, Tensor)):
        video = FramesInMemory(given)
        yield video.path, video
    elif isinstance(given, StoredVideo):
        yield given.path, given
    elif isinstance(given, (str, os.PathLike)):
        yield os.fspath(given), open_video(given, pattern=pattern)
    else:
        raise TypeError(f"the video is a {type(given).__name__}; expected {ALLOWED}")


def is_address(path: str) -> bool:
    """Whether a path is an address, as https://host/video.mp4."""
    return bool(re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+://", path))


@contextmanager
def _as_file(name: str, write: Callable[[Path], object]) -> Iterator[tuple[str, Video]]:
    """A video in a temporary file, which exists until the context ends."""
    with tempfile.TemporaryDirectory(prefix="ffn-") as folder:
        path = Path(folder, "video")
        try:
            write(path)
            yield name, open_video(path)
        except VideoError as error:  # the path of the file in the folder says nothing
            if error.path != str(path):
                raise
            raise VideoError(name, error.cause, error.frame) from error


def _fetch(address: str, path: Path) -> None:
    """Download a file: http and https with requests, other addresses with fsspec.

    Raises:
        VideoError: it cannot be downloaded, or is larger than `DOWNLOAD_BYTES`.
    """

    def attempt() -> None:
        with _open_address(address) as source, path.open("wb") as file:
            while chunk := source.read(CHUNK):
                file.write(chunk)
                if refusal := DOWNLOAD_BYTES.refusal(file.tell()):
                    raise VideoError(address, refusal)

    try:
        remote.repeat(address, attempt, remote.WAITS[:2])  # a person may wait
    except OSError as error:
        raise VideoError(address, explain(error)) from error


def _open_address(address: str) -> AbstractContextManager[IO[bytes]]:
    if address.lower().startswith(("http://", "https://")):
        import requests

        answer = requests.get(address, stream=True, timeout=30)
        answer.raise_for_status()
        answer.raw.decode_content = True  # of a server that compresses
        return answer.raw
    import fsspec

    return fsspec.open(address, "rb")


def frame_times(video: Video, fps: float | None) -> tuple[np.ndarray, float]:
    """Time of each frame in seconds after the first (N,), and the duration of the video.

    The last frame is shown as long as the mean of the others.

    Args:
        video: opened.
        fps: frames per second, if the video has no times.

    Raises:
        VideoError: the video has no times, or a single frame, and ``fps`` is None.
    """
    times = video.times
    if times is not None and len(times) > 1 and times[-1] > times[0]:
        times = times - times[0]  # a store may hold a part of a video
        return times, float(times[-1]) * len(times) / (len(times) - 1)
    if fps is None:
        raise VideoError(video.path, "its frames have no times; give their rate: fps=, or --fps")
    return np.arange(len(video)) / fps, len(video) / fps
