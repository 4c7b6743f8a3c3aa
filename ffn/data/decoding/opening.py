"""One door to all readers: `open_video` takes the reader that gives the right frames fastest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ffn.data.decoding.decord_reader import DecordFile
from ffn.data.decoding.errors import VideoError
from ffn.data.decoding.folder import PATTERN, FrameFolder
from ffn.data.decoding.pyav_reader import PyAVFile, upright
from ffn.data.decoding.timeline import decoded, open_container, read_timeline
from ffn.data.decoding.torchcodec_reader import TorchCodecFile

READERS = {
    "auto": PyAVFile,  # right in every file that FFmpeg decodes, and the fastest measured
    "pyav": PyAVFile,
    "decord": DecordFile,
    "torchcodec": TorchCodecFile,
}


class Video(Protocol):
    """What every reader returns: a video that knows its length and reads any frames."""

    path: str

    def __len__(self) -> int:
        """Number of frames."""

    def read(self, indices: Iterable[int]) -> Tensor:
        """Frames at `indices`, in that order, uint8 RGB (N, H, W, 3)."""

    def between(self, start: float | None, end: float | None) -> range:
        """Indices of the frames shown at a time in [start, end), in seconds."""


@dataclass(frozen=True)
class Facts:
    """What a video file really holds, whatever its header says.

    Attributes:
        frames: Number of frames shown.
        fps: Mean number of frames per second; 0 for a single frame.
        duration: How long they are shown in all, in seconds; 0 for a single frame.
        width: Of an upright frame, in pixels.
        height: Of an upright frame, in pixels.
        rotation: Degrees counterclockwise by which stored frames are turned to stand upright.
        codec: FFmpeg's name of the codec, as "h264".
        container: FFmpeg's names of the container.
        header_frames: Frames that the header counts; 0 where it does not say.
        header_duration: Seconds that the file lasts by its header, sound included; 0 likewise.
        unsought: Why frames cannot be sought, so that the file is read from its start; or "".
    """

    frames: int
    fps: float
    duration: float
    width: int
    height: int
    rotation: int
    codec: str
    container: str
    header_frames: int
    header_duration: float
    unsought: str


def open_video(
    path: str | os.PathLike[str],
    *,
    decoder: str = "auto",
    pattern: str = PATTERN,
    frames: int | None = None,
) -> Video:
    """Open a video file or a folder of frames.

    Args:
        path: A file is a video, a folder holds its frames.
        decoder: One of `READERS`, for files. `auto` decodes what FFmpeg decodes; the others refuse
            files that they would read wrongly.
        pattern: Name of a frame inside a folder.
        frames: Number of frames if it is known, as from an index; it saves listing a folder, or
            decoding a file whose frames cannot be counted otherwise.

    Returns:
        An object with a length in frames and `read(indices)`.

    Raises:
        VideoError: if it cannot be opened.
        ValueError: if `decoder` is unknown.
    """
    if decoder not in READERS:
        raise ValueError(f"decoder {decoder!r} is unknown; expected one of {', '.join(READERS)}")
    path = os.fspath(path)
    if os.path.isdir(path):
        return FrameFolder(path, pattern, frames)
    return READERS[decoder](path, frames)


def decode(
    path: str | os.PathLike[str],
    indices: Sequence[int],
    *,
    decoder: str = "auto",
    pattern: str = PATTERN,
) -> Tensor:
    """Read frames of one video.

    Args:
        path: Video file or folder of frames.
        indices: 0-based frame numbers, in any order, repeats allowed.
        decoder: See `open_video`.
        pattern: Name of a frame inside a folder.

    Returns:
        uint8 RGB of shape (N, H, W, 3).

    Raises:
        VideoError: if the video cannot be opened or a frame cannot be read.
    """
    return open_video(path, decoder=decoder, pattern=pattern).read(indices)


def count_frames(path: str | os.PathLike[str], *, pattern: str = PATTERN) -> int:
    """Count the frames of a video file or a folder of frames.

    Raises:
        VideoError: if it cannot be opened.
    """
    return len(open_video(path, pattern=pattern))


def probe(path: str | os.PathLike[str], *, decode_all: bool = False) -> Facts:
    """Find out what a video file holds.

    Args:
        path: The file.
        decode_all: Decode every frame, to find damage; otherwise as few as possible, one at least.

    Raises:
        VideoError: if the file cannot be opened, is cut off, or a frame that was to be decoded is
            damaged.
    """
    path = os.fspath(path)
    with open_container(path) as container:
        timeline = read_timeline(path, container)
    every = decode_all and not timeline.unsought  # what cannot be sought was decoded to count it
    count, first = 0, None
    with open_container(path) as container:
        for frame in decoded(path, container):
            first, count = first or frame, count + 1
            if not every:
                break
    if first is None or (every and count != len(timeline)):
        raise VideoError(path, f"{count} of its {len(timeline)} frames decode")
    height, width, _ = upright(first).shape
    seconds = timeline.seconds
    fps = (len(timeline) - 1) / float(seconds[-1]) if seconds[-1] > 0 else 0.0
    return Facts(
        frames=len(timeline),
        fps=fps,
        duration=len(timeline) / fps if fps else 0.0,
        width=width,
        height=height,
        rotation=first.rotation % 360,
        codec=timeline.codec,
        container=timeline.container,
        header_frames=timeline.header_frames,
        header_duration=timeline.header_duration,
        unsought=timeline.unsought,
    )
