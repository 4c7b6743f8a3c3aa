"""Open a video file with FFmpeg (PyAV): its frames in order, their times and its keyframes.

The number of frames in a header is unreliable: containers omit it, count frames that are never
shown, or count frames that a truncated file no longer has. Reading the packets of a file needs no
decoding. If each packet is one frame with its own time and keyframes are marked, the packets give
the exact frames and the file can be sought. Every other file is decoded once to count its frames,
and is always read from its first frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ffn.data.decoding.opening import ffmpeg_message, open_local
from ffn.data.decoding.video import VideoError
from ffn.limits import FRAME_PIXELS, VIDEO_FRAMES, frame_refusal

if TYPE_CHECKING:
    import av

# Formats in which one packet is one frame and a keyframe needs no earlier frame.
SEEKABLE_CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "h263", "mjpeg", "ffv1", "prores")
SEEKABLE_CONTAINERS = ("mov", "matroska", "webm")

# Metadata that encrypted videos have in mkv and webm, and in wmv.
KEYS = {"enc_key_id", "ASF_Protection_Type"}
ENCRYPTED = "encrypted, which is not read; decrypt it with the program that has its key"


def open_container(path: str) -> av.container.InputContainer:
    """Open a file for decoding on one thread; FFmpeg reports damage as an error.

    Raises:
        VideoError: if the file does not exist, is not a video, or has no video stream.
    """
    container = open_local(path)
    reason = _why_unusable(container)
    if reason:
        container.close()
        raise VideoError(path, reason)
    stream = container.streams.best("video")
    stream.thread_type = "NONE"
    stream.codec_context.thread_count = 1
    stream.codec_context.options = {
        "err_detect": "explode",
        "max_pixels": str(FRAME_PIXELS.value),  # for frames that are larger than the header says
    }
    return container


def _why_unusable(container: av.container.InputContainer) -> str:
    """Why a file is not decoded; empty if it is."""
    stream = container.streams.best("video")
    if stream is None:
        return "the file has no video stream"
    context = stream.codec_context
    if context is None:
        return "FFmpeg has no decoder for its video stream"
    if KEYS & {*container.metadata, *stream.metadata}:
        return ENCRYPTED
    return frame_refusal(context.width, context.height)


def decode_frames(path: str, container: av.container.InputContainer) -> Iterator[av.VideoFrame]:
    """Decode all frames from the current position, in presentation order.

    Raises:
        VideoError: at the first frame that is damaged or cannot be decoded.
    """
    import av

    count, stream = 0, container.streams.best("video")
    try:
        with closing(container.decode(stream)) as frames:  # an open generator keeps its memory
            for frame in frames:
                if frame.is_corrupt:
                    raise VideoError(path, "damaged: a part of the frame does not decode", count)
                yield frame
                count += 1
    except (av.error.FFmpegError, OSError, ValueError) as error:
        cause = f"corrupt or truncated at frame {count} or later ({ffmpeg_message(error)})"
        raise VideoError(path, cause) from None


def display_matrix(frame: av.VideoFrame) -> np.ndarray:
    """2 x 2 matrix of a frame: pixel (x, y) is shown at (x, y) @ matrix, apart from an offset."""
    from av.sidedata.sidedata import Type

    try:
        data = frame.side_data.get(Type.DISPLAYMATRIX)
    except ValueError:  # the frame has side data of a kind that PyAV does not know
        angle = np.deg2rad(frame.rotation)
        return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return np.eye(2) if data is None else np.frombuffer(data, np.int32).reshape(3, 3)[:2, :2]


def to_rgb(frame: av.VideoFrame) -> np.ndarray:
    """Pixels of a frame, uint8 RGB (H, W, 3), rotated and mirrored as for display."""
    # One thread, as decoding: FFmpeg would start one per core for each frame and wait for them.
    image = frame.to_ndarray(format="rgb24", threads=1)
    matrix = display_matrix(frame)
    if abs(matrix[0, 0]) < abs(matrix[0, 1]):
        image, matrix = image.swapaxes(0, 1), matrix[::-1]
    return image[:: -1 if matrix[1, 1] < 0 else 1, :: -1 if matrix[0, 0] < 0 else 1]


@dataclass(frozen=True, eq=False)
class Timeline:
    """Times of the frames of a file, and the positions at which decoding can start.

    Attributes:
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
    """

    times: np.ndarray | None
    time_base: float
    keyframe_times: np.ndarray
    open_gop: bool
    not_seekable: str
    header_frames: int
    header_duration: float
    container: str
    codec: str

    def __len__(self) -> int:
        return len(self.times)

    @cached_property
    def seconds(self) -> np.ndarray:
        """Time of each frame in seconds after the first, (N,) float64."""
        return (self.times - self.times[0]) * self.time_base

    def preceding_keyframe(self, time: int) -> int:
        """Time of the last keyframe that is shown at or before `time`."""
        return int(self.keyframe_times[np.searchsorted(self.keyframe_times, time, "right") - 1])


def read_timeline(
    path: str, container: av.container.InputContainer, *, count: bool = True
) -> Timeline:
    """Read the timeline of an open file; the position in the file is undefined afterwards.

    Args:
        path: The file.
        container: The same file, from `open_container`.
        count: Whether to decode a file that is not seekable, to count its frames.

    Raises:
        VideoError: if the file is truncated, has no frame, or a frame does not decode while frames
            are counted.
    """
    stream = container.streams.best("video")
    context, names = stream.codec_context, container.format.name
    if "mov" in names:
        _check_not_truncated(path, container, stream)
    not_seekable = _unseekable_format(names, context.codec.canonical_name)
    times, keyframe_times, open_gop = None, np.empty(0, dtype=np.int64), False
    if not not_seekable:
        packets, not_seekable = _shown_packets(path, container, stream)
    if not not_seekable:
        times = np.sort([packet.time for packet in packets])
        keyframe_times = np.sort([packet.time for packet in packets if packet.is_keyframe])
        open_gop = _has_open_group(packets)
    elif count:
        times = _decode_times(path)
    return Timeline(
        times=times,
        time_base=float(stream.time_base),
        keyframe_times=keyframe_times,
        open_gop=open_gop,
        not_seekable=not_seekable,
        header_frames=stream.frames,
        header_duration=(container.duration or 0) / 1e6,  # microseconds
        container=names,
        codec=context.codec.canonical_name,
    )


class _Packet(NamedTuple):
    """The fields of a packet that a timeline needs, without its bytes."""

    time: int | None
    is_keyframe: bool
    is_corrupt: bool


def _check_not_truncated(
    path: str, container: av.container.InputContainer, stream: av.VideoStream
) -> None:
    """Compare the sample table of an mp4 or mov file with the file's size."""
    size, entries = container.size, stream.index_entries
    if refusal := VIDEO_FRAMES.refusal(len(entries)):
        raise VideoError(path, refusal)
    if len(entries) > size:
        raise VideoError(path, f"damaged: it has {size:,} bytes for {len(entries):,} frames")
    complete = [entry.pos + entry.size <= size for entry in entries]
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
    path: str, container: av.container.InputContainer, stream: av.VideoStream
) -> tuple[list[_Packet], str]:
    """The packets of shown frames in decoding order, and why the file is not seekable, or ""."""
    import av

    packets, most = [], VIDEO_FRAMES.value
    try:
        for packet in container.demux(stream):
            if packet.has_sidedata("encryption_info"):
                raise VideoError(path, ENCRYPTED)
            if packet.size and not packet.is_discard:
                packets.append(_Packet(packet.pts, packet.is_keyframe, packet.is_corrupt))
            if len(packets) > most:
                raise VideoError(path, VIDEO_FRAMES.refusal(len(packets)))
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


def _has_open_group(packets: list[_Packet]) -> bool:
    keyframe = packets[0].time
    for packet in packets:
        keyframe = packet.time if packet.is_keyframe else keyframe
        if packet.time < keyframe:
            return True
    return False


def _decode_times(path: str) -> np.ndarray:
    """Times of all frames, found by decoding them."""
    with open_container(path) as container:
        times = [frame.pts or 0 for frame in decode_frames(path, container)]
    if not times:
        raise VideoError(path, "the file has no frame, or is encrypted")
    return np.array(times, dtype=np.int64)
