"""The frames of a video file in the order of their times, found without trust in its header.

The number of frames in a header is a hint: containers leave it out, count frames that are never
shown, or count what a cut file no longer holds. The packets of a file tell more, and going through
them costs no decoding. Where each packet is one frame with a time of its own and key frames are
marked, they are the truth, and frames can be sought. Elsewhere every frame is decoded once and
counted, and the file is read from its start.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ffn.data.decoding.errors import VideoError

if TYPE_CHECKING:
    import av

# Where one packet is one frame, and a key frame needs no frame before it.
SOUGHT_CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "h263", "mjpeg", "ffv1", "prores")
SOUGHT_CONTAINERS = ("mov", "matroska", "webm")
REMEMBERED = 256  # files whose timelines a process keeps


@dataclass(frozen=True, eq=False)
class Timeline:
    """When each frame of a file is shown, and where decoding can start.

    Attributes:
        path: The file.
        times: Of the frames shown, in that order, (N,) int64, in units of `unit`; None if they
            could not be sought and were not counted.
        unit: Of the times, in seconds.
        keys: Times of the frames that need none before them, ascending; empty if not sought.
        leading: Whether frames follow a key frame that are shown before it (open groups of
            pictures).
        unsought: Why frames cannot be sought, or "" if they can.
        header_frames: Frames that the header counts; 0 where it does not say.
        header_duration: Seconds that the file lasts by its header, sound included; 0 likewise.
        container: FFmpeg's names of the container, as "mov,mp4,m4a,3gp,3g2,mj2".
        codec: FFmpeg's name of the codec, as "h264".
        bits: Per colour component, as 8 or 10.
    """

    path: str
    times: np.ndarray | None
    unit: float
    keys: np.ndarray
    leading: bool
    unsought: str
    header_frames: int
    header_duration: float
    container: str
    codec: str
    bits: int

    def __len__(self) -> int:
        return len(self.times)

    @cached_property
    def seconds(self) -> np.ndarray:
        """When each frame is shown, (N,) float64, in seconds after the first."""
        return (self.times - self.times[0]) * self.unit

    def between(self, start: float | None, end: float | None) -> range:
        """Indices of the frames shown at a time in [start, end), in seconds after the first.

        Raises:
            VideoError: if there is none.
        """
        return shown_between(self.path, self.seconds, start, end)


def shown_between(
    path: str, seconds: np.ndarray | None, start: float | None, end: float | None
) -> range:
    """Indices of the frames shown at a time in [start, end).

    Args:
        path: The video, for messages.
        seconds: When each frame is shown, ascending; None if that is unknown.
        start: In seconds; None is the start of the video.
        end: Likewise; None is its end.

    Raises:
        VideoError: if there is no such frame, or the frames have no times.
    """
    if seconds is None or (len(seconds) > 1 and not seconds[-1]):
        raise VideoError(path, f"its frames have no times; got {start} … {end} s")
    first = 0 if start is None else int(np.searchsorted(seconds, start - 1e-6))
    stop = len(seconds) if end is None else int(np.searchsorted(seconds, end - 1e-6))
    if first >= stop:
        shown = f"its frames start at {seconds[0]:.2f} … {seconds[-1]:.2f} s"
        raise VideoError(path, f"has no frame between {start} and {end} s; {shown}")
    return range(first, stop)


class SoughtFile:
    """A file for readers other than PyAV: what its packets tell, which such readers rely on.

    Args:
        path: The file.

    Raises:
        VideoError: if the file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with open_container(path) as container:
            self.timeline = read_timeline(path, container, count=False)

    def __len__(self) -> int:
        return len(self.timeline)

    def between(self, start: float | None, end: float | None) -> range:
        """As `PyAVFile.between`."""
        return self.timeline.between(start, end)

    def check_count(self, decoder: str, count: int) -> None:
        """Refuse a file of which a reader counts other frames than are shown.

        Raises:
            VideoError: if it does.
        """
        if count != len(self):
            cause = f"{decoder} counts {count} frames, {len(self)} are shown; use decoder auto"
            raise VideoError(self.path, cause)


def open_container(path: str) -> av.container.InputContainer:
    """Open a file for decoding on one thread, with damage treated as an error.

    Raises:
        VideoError: if there is no such file, it is no video, or holds no video stream.
    """
    if not os.path.exists(path):
        raise VideoError(path, "no such file or folder")
    if not os.path.isfile(path):
        raise VideoError(path, "is no regular file")
    if os.path.getsize(path) == 0:
        raise VideoError(path, "the file is empty (0 bytes)")
    import av  # here, since only decoding needs it

    try:
        container = av.open(path, metadata_errors="ignore")
    except (av.error.FFmpegError, OSError, ValueError) as error:
        cause = f"not a video, or cut off before its index ({_short(error)})"
        raise VideoError(path, cause) from None
    stream = container.streams.best("video")
    if stream is None:
        container.close()
        raise VideoError(path, "the file has no video stream")
    if stream.codec_context is None:
        container.close()
        raise VideoError(path, "its video is of a kind that FFmpeg cannot decode here")
    stream.thread_type = "NONE"
    stream.codec_context.thread_count = 1
    stream.codec_context.options = {"err_detect": "explode"}
    return container


def read_timeline(
    path: str, container: av.container.InputContainer, *, count: bool = True
) -> Timeline:
    """Timeline of an opened file, which stands at no certain place afterwards.

    It is remembered until the file changes, for the last `REMEMBERED` files of a process.

    Args:
        path: The file.
        container: The same, from `open_container`.
        count: Whether a file that cannot be sought is decoded to count its frames.

    Raises:
        VideoError: if the file is cut off, shows no frame, or a frame that has to be decoded to
            count them does not.
    """
    status = os.stat(path)
    identity = (path, status.st_size, status.st_mtime_ns)
    timeline = _timelines.pop(identity, None) or _scan(path, container)
    if count and timeline.times is None:
        timeline = replace(timeline, times=_decoded_times(path))
    _timelines[identity] = timeline  # the newest stands last
    while len(_timelines) > REMEMBERED:
        _timelines.popitem(last=False)
    return timeline


def decoded(path: str, container: av.container.InputContainer) -> Iterator[av.VideoFrame]:
    """All frames from where the file stands, in the order in which they are shown.

    Raises:
        VideoError: at the first that does not decode, or only with damage.
    """
    import av

    count, stream = 0, container.streams.best("video")
    try:
        with closing(container.decode(stream)) as frames:  # left open it would keep memory
            for frame in frames:
                if frame.is_corrupt:
                    raise VideoError(path, "damaged: not all of the frame decodes", count)
                yield frame
                count += 1
    except (av.error.FFmpegError, OSError, ValueError) as error:
        cause = f"corrupt or cut off, at frame {count} or later ({_short(error)})"
        raise VideoError(path, cause) from None


_timelines: OrderedDict[tuple[str, int, int], Timeline] = OrderedDict()


class _Packet(NamedTuple):
    """What counts of a packet that is shown, without its bytes."""

    time: int | None
    is_key: bool
    is_damaged: bool


def _scan(path: str, container: av.container.InputContainer) -> Timeline:
    stream = container.streams.best("video")
    context, names = stream.codec_context, container.format.name
    if "mov" in names:  # it lists where each frame is stored
        there = [entry.pos + entry.size <= container.size for entry in stream.index_entries]
        if not all(there):
            cause = f"cut off: {sum(there)} of its {len(there)} frames are there"
            raise VideoError(path, cause)
    unsought = _why_no_kind_to_seek(names, context.codec.canonical_name)
    times, keys, leading = None, np.empty(0, dtype=np.int64), False
    if not unsought:
        packets, unsought = _packets(container, stream)
    if not unsought:
        decoding_order = np.array([packet.time for packet in packets], dtype=np.int64)
        is_key = np.array([packet.is_key for packet in packets])
        times, keys = np.sort(decoding_order), np.sort(decoding_order[is_key])
        last_key = decoding_order[np.maximum.accumulate(np.where(is_key, np.arange(len(times)), 0))]
        leading = bool((decoding_order < last_key).any())
    return Timeline(
        path=path,
        times=times,
        unit=float(stream.time_base),
        keys=keys,
        leading=leading,
        unsought=unsought,
        header_frames=stream.frames,
        header_duration=(container.duration or 0) / 1e6,  # microseconds
        container=names,
        codec=context.codec.canonical_name,
        bits=max((c.bits for c in context.format.components), default=8) if context.format else 8,
    )


def _decoded_times(path: str) -> np.ndarray:
    """Times of all frames, by decoding them."""
    with open_container(path) as container:
        times = [frame.pts or 0 for frame in decoded(path, container)]
    if not times:
        raise VideoError(path, "the file shows no frame")
    return np.array(times, dtype=np.int64)


def _why_no_kind_to_seek(container: str, codec: str) -> str:
    """Why packets of such files do not tell all about the frames, or "" if they may."""
    if not any(name in container.split(",") for name in SOUGHT_CONTAINERS):
        return f"{container} marks no key frames for certain"
    if codec not in SOUGHT_CODECS:
        return f"packets of {codec} may be no frame, or need others before them"
    return ""


def _packets(
    container: av.container.InputContainer, stream: av.VideoStream
) -> tuple[list[_Packet], str]:
    """The packets that are shown, in decoding order, and why they do not tell all, or ""."""
    import av

    found = []
    try:
        for packet in container.demux(stream):
            if packet.size and not packet.is_discard:
                found.append(_Packet(packet.pts, packet.is_keyframe, packet.is_corrupt))
    except (av.error.FFmpegError, OSError, ValueError) as error:
        return found, f"its packets end with an error ({_short(error)})"
    times = [packet.time for packet in found]
    if None in times or len(set(times)) < len(times):
        return found, "not every packet has a time of its own"
    if any(packet.is_damaged for packet in found):
        return found, "a packet is damaged"
    if not found or not found[0].is_key:
        return found, "it does not start with a key frame"
    return found, ""


def _short(error: Exception) -> str:
    """What FFmpeg says, without numbers and path."""
    return getattr(error, "strerror", None) or type(error).__name__
