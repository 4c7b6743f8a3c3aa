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
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from ffn.data.decoding.clock import ascending, joined, may_jump
from ffn.data.decoding.opening import ffmpeg_message, open_local
from ffn.data.decoding.video import VideoError
from ffn.limits import FRAME_PIXELS, VIDEO_FRAMES, frame_refusal

if TYPE_CHECKING:
    import av

# Formats in which one packet is one frame and a keyframe needs no earlier frame.
SEEKABLE_CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "h263", "mjpeg", "ffv1", "prores")
SEEKABLE_CONTAINERS = ("mov", "matroska", "webm")

NO_FRAME_BYTES = 19  # of an MPEG-4 packet at most, that only repeats the frame before it

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
    stream = video_stream(container)
    stream.thread_type = "NONE"
    stream.codec_context.thread_count = 1
    stream.codec_context.options = {
        "err_detect": "explode",
        "max_pixels": str(FRAME_PIXELS.value),  # for frames that are larger than the header says
    }
    return container


def _why_unusable(container: av.container.InputContainer) -> str:
    """Why a file is not decoded; empty if it is."""
    stream = video_stream(container)
    if stream is None:
        sound = container.streams.best("audio")
        codec = sound.codec_context.codec.canonical_name if sound and sound.codec_context else ""
        return "the file has no video stream" + (codec and f": it is a sound file ({codec})")
    context = stream.codec_context
    if context is None:
        return "FFmpeg has no decoder for its video stream"
    if container.format.name == "webp_pipe" and not context.width:
        return "an animated WebP, which FFmpeg lacks, or a damaged one; convert it to mp4 or gif"
    if KEYS & {*container.metadata, *stream.metadata}:
        return ENCRYPTED
    return frame_refusal(context.width, context.height)


def video_stream(container: av.container.InputContainer) -> av.VideoStream | None:
    """The best video stream that is not a cover picture; None if there is none."""
    from av.stream import Disposition

    best = container.streams.best("video")
    if best is None or not best.disposition & Disposition.attached_pic:
        return best
    streams = container.streams.video
    return next((s for s in streams if not s.disposition & Disposition.attached_pic), None)


def decode_frames(
    path: str, container: av.container.InputContainer, *, join_clocks: bool = False
) -> Iterator[av.VideoFrame]:
    """Decode all frames from the current position, in presentation order.

    Args:
        path: The file.
        container: The same file.
        join_clocks: Whether the times of the frames continue where the clock of the file restarts.

    Raises:
        VideoError: at the first frame that is damaged or cannot be decoded.
    """
    import av

    count, stream = 0, video_stream(container)
    try:
        with closing(container.demux(stream)) as packets:  # an open generator keeps its memory
            if join_clocks:
                packets = joined(packets, container.format, stream.time_base)
            for frame in chain.from_iterable(packet.decode() for packet in packets):
                if frame.is_corrupt:
                    raise VideoError(path, "damaged: a part of the frame does not decode", count)
                yield frame
                count += 1
    except (av.error.FFmpegError, OSError, ValueError) as error:
        why = ffmpeg_message(error)
        if isinstance(error, av.error.ArgumentError):  # what FFmpeg says of too many pixels
            why = f"invalid, or more pixels than {FRAME_PIXELS.variable}, {FRAME_PIXELS.value:,}"
        cause = f"corrupt or truncated at frame {count} or later ({why})"
        raise VideoError(path, cause) from None


def to_rgb(frame: av.VideoFrame) -> np.ndarray:
    """Pixels of a frame, uint8 RGB (H, W, 3), rotated and mirrored as for display."""
    is_transposed, rows, columns = _turn(frame)
    # One thread, as decoding: FFmpeg would start one per core for each frame and wait for them.
    image = frame.to_ndarray(format="rgb24", threads=1)
    return (image.swapaxes(0, 1) if is_transposed else image)[rows, columns]


def _turn(frame: av.VideoFrame) -> tuple[bool, slice, slice]:
    """Whether rows become columns, and the order of rows and of columns."""
    from av.sidedata.sidedata import SideDataContainer, Type

    forward, backward = slice(None), slice(None, None, -1)
    try:
        # `frame.side_data` would refer to the frame, which then stays until garbage is collected.
        matrix = SideDataContainer(frame).get(Type.DISPLAYMATRIX)
    except ValueError:  # the frame has side data of a kind that PyAV does not know
        angle = np.deg2rad(frame.rotation)
        a, b, c, d = np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)
    else:
        if matrix is None:
            return False, forward, forward
        a, b, _, c, d = np.frombuffer(matrix, np.int32)[:5]  # (x, y) is shown at (ax + cy, bx + dy)
    is_transposed = abs(a) < abs(b)
    if is_transposed:
        a, d = c, b
    return is_transposed, backward if d < 0 else forward, backward if a < 0 else forward


@dataclass(frozen=True, eq=False)
class Timeline:
    """Times of the frames of a file, and the positions at which decoding can start.

    Attributes:
        times: Presentation times in ascending order, in units of `time_base`, (N,) int64; (N,)
            float64 if the file is not seekable; None if its frames were not counted.
        time_base: Unit of the times, in seconds.
        keyframe_times: Times of the keyframes, ascending; empty if the file is not seekable.
        open_gop: Whether frames that follow a keyframe in the file are shown before it (open
            groups of pictures).
        in_doubt: Whether the times may be those of decoding instead of presentation: the codec may
            reorder frames, and the times ascend in the file.
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
    in_doubt: bool
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
    stream = video_stream(container)
    context, names = stream.codec_context, container.format.name
    if "mov" in names:
        _check_not_truncated(path, container, stream)
    not_seekable = _unseekable_format(names, context.codec.canonical_name)
    times, keyframe_times, open_gop = None, np.empty(0, dtype=np.int64), False
    in_doubt = False
    if not not_seekable:
        shown, is_keyframe, not_seekable = _shown_packets(path, container, stream)
    if not not_seekable:
        times, starts = np.sort(shown), shown[is_keyframe]
        keyframe_times = np.sort(starts)
        open_gop = bool((shown < starts[is_keyframe.cumsum() - 1]).any())
        in_doubt = len(shown) > 1 and context.has_b_frames and np.array_equal(times, shown)
    elif count:
        times = _decode_times(path)
    return Timeline(
        times=times,
        time_base=float(stream.time_base),
        keyframe_times=keyframe_times,
        open_gop=open_gop,
        in_doubt=in_doubt,
        not_seekable=not_seekable,
        header_frames=stream.frames,
        # In microseconds; of a format whose clock may jump, it is an estimate.
        header_duration=0.0 if may_jump(container.format) else (container.duration or 0) / 1e6,
        container=names,
        codec=context.codec.canonical_name,
    )


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
) -> tuple[np.ndarray, np.ndarray, str]:
    """Times of the packets of shown frames in decoding order, and which are keyframes, (N,) each.

    The third value is why the file is not seekable, or "".
    """
    import av

    times, marks, reason, most = [], [], "", VIDEO_FRAMES.value
    try:
        for packet in container.demux(stream):
            if packet.is_keyframe and packet.has_sidedata("encryption_info"):
                raise VideoError(path, ENCRYPTED)
            if packet.size and not packet.is_discard:
                times.append(packet.pts)
                marks.append(packet.is_keyframe)
                reason = "a packet is damaged" if packet.is_corrupt else reason
                if packet.size <= NO_FRAME_BYTES and stream.codec_context.name == "mpeg4":
                    reason = "a packet without a frame"
            if len(times) > most:
                raise VideoError(path, VIDEO_FRAMES.refusal(len(times)))
    except (av.error.FFmpegError, OSError, ValueError) as error:
        reason = f"reading its packets fails ({ffmpeg_message(error)})"
    shown, is_keyframe = np.array(times), np.array(marks, dtype=bool)
    if None in times or len({*times}) < len(times):
        reason = reason or "packets without a time, or with the same time"
    elif not any(marks[:1]):
        reason = reason or "it does not start with a keyframe"
    else:
        before = np.maximum(is_keyframe.cumsum() - 2, 0)  # the group of pictures before
        if (shown < shown[is_keyframe][before]).any():
            reason = reason or "its times restart, or it starts within a group of pictures"
    return shown, is_keyframe, reason


def _decode_times(path: str) -> np.ndarray:
    """Times of all frames, found by decoding them."""
    with open_container(path) as container:
        stream = video_stream(container)
        rate = stream.guessed_rate or 0
        step = float(1 / (rate * stream.time_base)) if rate else 0.0
        times = [frame.pts for frame in decode_frames(path, container, join_clocks=True)]
    if not times:
        raise VideoError(path, "the file has no frame, or is encrypted")
    return ascending(times, step)
