"""Measured metadata of a video file: frames, duration, size, rotation, codec."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ffn.data.decoding.container import decode_frames, open_container, read_timeline, to_rgb
from ffn.data.decoding.video import VideoError


@dataclass(frozen=True)
class VideoMetadata:
    """Properties of a video file, measured from its packets and frames.

    Attributes:
        frames: Number of frames shown.
        fps: Mean number of frames per second; 0 for a single frame, and without times.
        duration: In seconds; 0 for a single frame, and without times.
        width: Of a frame after rotation, in pixels.
        height: Of a frame after rotation, in pixels.
        rotation: Degrees counterclockwise by which stored frames are rotated for display.
        codec: FFmpeg's name of the codec, e.g. "h264".
        header_duration: Duration according to the header in seconds, sound included; 0 if it has
            none.
    """

    frames: int
    fps: float
    duration: float
    width: int
    height: int
    rotation: int = 0
    codec: str = ""
    header_duration: float = 0.0


def probe(path: str | os.PathLike[str], *, decode_all: bool = False) -> VideoMetadata:
    """Measure the metadata of a video file.

    Args:
        path: The file.
        decode_all: Decode every frame, to find damage. Otherwise only the first frame of a
            seekable file is decoded.

    Raises:
        VideoError: if the file cannot be opened, is truncated, or a decoded frame is damaged.
    """
    path = os.fspath(path)
    with open_container(path) as container:
        timeline = read_timeline(path, container)
    # Counting the frames of a file that is not seekable decoded all of them already.
    decode_all = decode_all and not timeline.not_seekable
    count, first = 0, None
    with open_container(path) as container:
        for frame in decode_frames(path, container):
            first, count = first or frame, count + 1
            if not decode_all:
                break
    if first is None or (decode_all and count != len(timeline)):
        raise VideoError(path, f"{count} of {len(timeline)} frames decode")
    height, width, _ = to_rgb(first).shape
    last = float(timeline.seconds[-1])
    fps = (len(timeline) - 1) / last if last > 0 else 0.0
    return VideoMetadata(
        frames=len(timeline),
        fps=fps,
        duration=len(timeline) / fps if fps else 0.0,
        width=width,
        height=height,
        rotation=first.rotation % 360,
        codec=timeline.codec,
        header_duration=timeline.header_duration,
    )
