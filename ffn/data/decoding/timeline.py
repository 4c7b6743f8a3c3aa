"""Presentation times and keyframes of a video file, read from its packets.

The number of frames in a header is unreliable: containers omit it, count frames that are never
shown, or count frames that a truncated file no longer has. Reading the packets of a file needs no
decoding. If each packet is one frame with its own time and keyframes are marked, the packets give
the exact frames and the file can be sought. Every other file is decoded once to count its frames,
and is always read from its first frame.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ffn.data.decoding.container import decode_frames, ffmpeg_message, open_container
from ffn.data.decoding.video import VideoError, frames_between

if TYPE_CHECKING:
    import av

# Formats in which one packet is one frame and a keyframe needs no earlier frame.
SEEKABLE_CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "h263", "mjpeg", "ffv1", "prores")
SEEKABLE_CONTAINERS = ("mov", "matroska", "webm")
CACHE_SIZE = 256  # files whose timelines a process keeps


@dataclass(frozen=True, eq=False)
class Timeline:
    """Times of the frames of a file, and the positions at which decoding can start.

    Attributes:
        path: The file.
        times: Presentation times in ascending order, (N,) int64, in units of `time_base`; None if
            the file is not seekable and its frames were not counted.
        time_base: Unit of the times, in seconds.
        keyframe_times: Times of the keyframes, ascending; empty if the file is not seekable.
        open_gop: Whether frames that follow a keyframe in the file are shown before it (open
            groups of pictures).
        not_seekable: Why the file has to be decoded from its first frame, or "" if it is seekable.
        header_frames: Number of frames according to the header; 0 if it has none.
        header_duration: Duration according to the header in seconds, sound included; 0 if it has
            none.
        container: FFmpeg's names of the container, e.g. "mov,mp4,m4a,3gp,3g2,mj2".
        codec: FFmpeg's name of the codec, e.g. "h264".
        bit_depth: Bits per color component, e.g. 8 or 10.
    """

    path: str
    times: np.ndarray | None
    time_base: float
    keyframe_times: np.ndarray
    open_gop: bool
    not_seekable: str
    header_frames: int
    header_duration: float
    container: str
    codec: str
    bit_depth: int

    def __len__(self) -> int:
        return len(self.times)

    @cached_property
    def seconds(self) -> np.ndarray:
        """Time of each frame in seconds after the first, (N,) float64."""
        return (self.times - self.times[0]) * self.time_base

    def between(self, start: float | None, end: float | None) -> range:
        """Indices of the frames shown at a time in [start, end), in seconds after the first.

        Raises:
            VideoError: if the range contains no frame.
        """
        return frames_between(self.path, self.seconds, start, end)

    def preceding_keyframe(self, time: int) -> int:
        """Time of the last keyframe that is shown at or before `time`."""
        return int(self.keyframe_times[np.searchsorted(self.keyframe_times, time, "right") - 1])


def read_timeline(
    path: str, container: av.container.InputContainer, *, count: bool = True
) -> Timeline:
    """Read the timeline of an open file; the position in the file is undefined afterwards.

    Timelines are cached for the last `CACHE_SIZE` files of a process, until a file changes.

    Args:
        path: The file.
        container: The same file, from `open_container`.
        count: Whether to decode a file that is not seekable, to count its frames.

    Raises:
        VideoError: if the file is truncated, has no frame, or a frame does not decode while frames
            are counted.
    """
    status = os.stat(path)
    identity = (path, status.st_size, status.st_mtime_ns)
    timeline = _cache.pop(identity, None)
    if timeline is None:
        timeline = _read_packets(path, container)
    if count and timeline.times is None:
        timeline = replace(timeline, times=_decode_times(path))
    _cache[identity] = timeline  # ordered from least to most recently used
    while len(_cache) > CACHE_SIZE:
        _cache.popitem(last=False)
    return timeline


_cache: OrderedDict[tuple[str, int, int], Timeline] = OrderedDict()


class _Packet(NamedTuple):
    """The fields of a packet that a timeline needs, without its bytes."""

    time: int | None
    is_keyframe: bool
    is_corrupt: bool


def _read_packets(path: str, container: av.container.InputContainer) -> Timeline:
    stream = container.streams.best("video")
    context, names = stream.codec_context, container.format.name
    if "mov" in names:
        _check_not_truncated(path, container, stream)
    not_seekable = _unseekable_format(names, context.codec.canonical_name)
    times, keyframe_times, open_gop = None, np.empty(0, dtype=np.int64), False
    if not not_seekable:
        packets, not_seekable = _shown_packets(container, stream)
    if not not_seekable:
        times, keyframe_times, open_gop = _sort_by_time(packets)
    return Timeline(
        path=path,
        times=times,
        time_base=float(stream.time_base),
        keyframe_times=keyframe_times,
        open_gop=open_gop,
        not_seekable=not_seekable,
        header_frames=stream.frames,
        header_duration=(container.duration or 0) / 1e6,  # microseconds
        container=names,
        codec=context.codec.canonical_name,
        bit_depth=(
            max((c.bits for c in context.format.components), default=8) if context.format else 8
        ),
    )


def _check_not_truncated(
    path: str, container: av.container.InputContainer, stream: av.VideoStream
) -> None:
    """Compare the sample table of an mp4 or mov file with the file's size."""
    complete = [entry.pos + entry.size <= container.size for entry in stream.index_entries]
    if not all(complete):
        cause = f"truncated: it has {sum(complete)} of its {len(complete)} frames"
        raise VideoError(path, cause)


def _unseekable_format(container: str, codec: str) -> str:
    """Why packets of a container and codec do not identify frames, or ""."""
    if not any(name in container.split(",") for name in SEEKABLE_CONTAINERS):
        return f"{container} does not mark keyframes reliably"
    if codec not in SEEKABLE_CODECS:
        return f"a packet of {codec} may contain no frame, or depend on earlier packets"
    return ""


def _shown_packets(
    container: av.container.InputContainer, stream: av.VideoStream
) -> tuple[list[_Packet], str]:
    """The packets of shown frames in decoding order, and why the file is not seekable, or ""."""
    import av

    packets = []
    try:
        for packet in container.demux(stream):
            if packet.size and not packet.is_discard:
                packets.append(_Packet(packet.pts, packet.is_keyframe, packet.is_corrupt))
    except (av.error.FFmpegError, OSError, ValueError) as error:
        return packets, f"reading its packets fails ({ffmpeg_message(error)})"
    times = [packet.time for packet in packets]
    if None in times or len(set(times)) < len(times):
        return packets, "packets without a time, or with the same time"
    if any(packet.is_corrupt for packet in packets):
        return packets, "a packet is damaged"
    if not packets or not packets[0].is_keyframe:
        return packets, "it does not start with a keyframe"
    return packets, ""


def _sort_by_time(packets: list[_Packet]) -> tuple[np.ndarray, np.ndarray, bool]:
    """Times of all frames and of the keyframes, ascending, and whether a group is open."""
    decoding_order = np.array([packet.time for packet in packets], dtype=np.int64)
    is_keyframe = np.array([packet.is_keyframe for packet in packets])
    positions = np.where(is_keyframe, np.arange(len(packets)), 0)
    last_keyframe = decoding_order[np.maximum.accumulate(positions)]
    open_gop = bool((decoding_order < last_keyframe).any())
    return np.sort(decoding_order), np.sort(decoding_order[is_keyframe]), open_gop


def _decode_times(path: str) -> np.ndarray:
    """Times of all frames, found by decoding them."""
    with open_container(path) as container:
        times = [frame.pts or 0 for frame in decode_frames(path, container)]
    if not times:
        raise VideoError(path, "the file has no frame")
    return np.array(times, dtype=np.int64)
