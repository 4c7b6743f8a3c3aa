"""Sources of live prediction: files played as if live, cameras, streams, iterables of frames."""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ffn.data import VideoError
from ffn.data.decoding import PATTERN
from ffn.data.decoding.container import to_rgb, video_stream
from ffn.data.decoding.opening import ffmpeg_message
from ffn.files import without_password
from ffn.limits import FRAME_PIXELS
from ffn.serve.inputs import Input, frame_times, is_address, open_input
from ffn.serve.live.rules import Clock, Frame

Arrival = tuple[Frame, Callable[[], np.ndarray]]
"""A frame that a source gives, without pixels; what gives them, uint8 RGB (H, W, 3)."""
Grab = tuple[float | None, Callable[[], np.ndarray]]
"""A frame of a connection: the sender's time in seconds, if any; what gives its RGB pixels."""

# What an address may open, also through others: no local files.
PROTOCOLS = "rtsp,rtsps,rtp,srtp,rtmp,rtmps,srt,udp,tcp,tls,http,https,httpproxy,crypto"
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds before the first new attempt, and before any
BREAK = 10.0  # seconds by which the times of a stream may jump ahead
SHORTEST = 1e-3  # seconds, the least from a frame to the next one, and of a window
DRIFT = 1e-3  # largest difference in speed between the clocks of a camera and of this machine


@dataclass(frozen=True)
class SourceEvent:
    """A change of the state of a source."""

    state: str  # "connected", "interrupted" or "failed" (an attempt to connect)
    message: str
    attempt: int = 0  # failed attempts since the interruption
    wait: float | None = None  # seconds until the next attempt


class Pace(threading.Condition):
    """What two threads share: it is held to read or to change that, and has a clock."""

    def now(self) -> float:
        """Seconds since an arbitrary moment; never steps back."""
        return monotonic()


class Source(NamedTuple):
    """A source with its options; see :func:`open_source`."""

    name: str  # for people
    frames: Callable[[Clock], Iterator[Arrival | SourceEvent]]  # raises VideoError


def _play(
    given: Input, speed: float, repeat: bool, fps: float | None, pattern: str, now: Clock
) -> Iterator[Arrival]:
    """The frames of a video at its own rate."""
    with open_input(given, pattern=pattern) as (_, video):
        times, duration = frame_times(video, fps)
        began, offset, goes_on = now(), 0.0, True
        while goes_on:
            for index, image in video.in_order(range(len(video))):
                time = offset + float(times[index])
                yield Frame(time, began + time / speed), lambda image=image: image
            offset, goes_on = offset + duration, repeat


def _take(pairs: Iterable[tuple[float, np.ndarray | Tensor]], now: Clock) -> Iterator[Arrival]:
    """The frames of an iterable, which are live when it gives them."""
    first, last = None, -math.inf
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"an item is a {type(pair).__name__}; expected pairs (seconds, frame)")
        time, frame = pair
        if not time > last:
            raise ValueError(f"a frame at {time} follows one at {last}; expected ascending times")
        first, last = time if first is None else first, time
        image = frame.detach().cpu().numpy() if isinstance(frame, Tensor) else np.asarray(frame)
        yield Frame(float(time - first), now()), lambda image=image: image


def _stay_connected(
    name: str, connect: Callable[[], Iterator[Grab]], attempts: int | None, now: Clock
) -> Iterator[Arrival | SourceEvent]:
    """The frames of a camera or a stream. After an interruption, it connects again.

    The wait before attempt n is min(30 s, 2^(n-1) s). The first connection is tried once, so that a
    wrong address is an error. So many failed attempts in a row are an error; None: never.
    """
    ended = VideoError(name, "the stream has ended")
    times, attempt = None, 0
    while True:
        state, error = "failed", ended
        try:
            with closing(connect()) as grabs:
                for sent, image in grabs:
                    arrived = now()
                    times = times or _StreamTimes(arrived)
                    if is_first := state == "failed":
                        yield SourceEvent("connected", name, attempt)
                        state, attempt = "interrupted", 0
                    yield times.frame(sent, arrived, is_first), image
        except VideoError as raised:
            error = raised
        if times is None:
            raise error
        if attempts is not None and attempt >= attempts:
            if error is ended and not attempt:
                return
            raise VideoError(name, f"{error.cause}; gave up after {attempt} attempts")
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(attempt, 16))
        yield SourceEvent(state, error.cause, attempt, wait)
        attempt += 1


class _StreamTimes:
    """Times of the frames of a stream, over interruptions.

    They ascend as those of the sender, if these ascend by at most `BREAK`. Otherwise, and after an
    interruption, they ascend as the clock, and a new part begins. A frame is late by its delay
    beyond the smallest one before, which may grow by `DRIFT` of the time.
    """

    def __init__(self, now: float) -> None:
        self._part, self._late, self._sent = -1, 0.0, 0.0  # of the frame before
        self._now, self._time = now, -SHORTEST

    def frame(self, sent: float | None, now: float, is_first: bool) -> Frame:
        """A frame that arrives now, the first of a connection or not."""
        waited = now - self._now
        sent = self._sent + waited if sent is None else sent
        passed = sent - self._sent
        if is_first or not 0 <= passed <= BREAK:
            self._part, self._late, passed = self._part + 1, 0.0, waited
        passed = max(passed, SHORTEST)
        self._late = max(0.0, self._late + waited - (1 + DRIFT) * passed)
        self._now, self._sent, self._time = now, sent, self._time + passed
        return Frame(self._time, now - self._late, self._part)


def _connect(
    address: str, kind: str | None, timeout: float, options: dict[str, str]
) -> Iterator[Grab]:
    """The frames of a camera or at an address.

    Raises:
        VideoError: if it cannot be opened or read, or has no video.
    """
    import av

    name, action = without_password(address), "cannot be opened"
    given = {"format": kind, "options": options, "timeout": timeout}
    try:
        with av.open(address, metadata_errors="ignore", **given) as container:
            action, stream = "interrupted", video_stream(container)
            # FFmpeg makes up times for these formats, of 25 frames per second.
            has_times = not container.format.flags & av.format.Flags.no_timestamps.value
            if stream is None or stream.codec_context is None:
                raise VideoError(name, "it has no video that FFmpeg decodes")
            stream.codec_context.thread_count = 1
            stream.codec_context.options = {"max_pixels": str(FRAME_PIXELS.value)}
            with closing(container.demux(stream)) as packets:  # an open generator keeps its memory
                for packet in packets:
                    with suppress(av.error.InvalidDataError):  # damaged on its way
                        for frame in packet.decode():
                            if not frame.is_corrupt:
                                yield frame.time if has_times else None, partial(to_rgb, frame)
    except (av.error.FFmpegError, OSError, ValueError) as error:
        is_late = isinstance(error, av.error.ExitError)  # what FFmpeg says at a timeout
        cause = f"no data for {timeout:g} s" if is_late else ffmpeg_message(error)
        raise VideoError(name, f"{action}: {cause}") from None


def open_source(
    given: object,
    *,
    speed: float | None = None,
    repeat: bool = False,
    fps: float | None = None,
    attempts: int | None = None,
    timeout: float = 5.0,
    options: Mapping[str, str] | None = None,
    pattern: str = PATTERN,
) -> Source:
    """The source for what a user names.

    Args:
        given: Of docs/live.md's table, or frames in memory.
        speed: Of files: factor of their rate; default: 1.
        repeat: Of files: play them again and again.
        fps: Of files without times: frames per second.
        attempts: Of cameras and addresses: number of attempts to connect again after an
            interruption; None: any number.
        timeout: Of cameras and addresses: seconds to connect, and to wait for data.
        options: Of cameras and addresses: options of FFmpeg, as ``{"rtsp_transport": "udp"}``. An
            option that the format does not have has no effect.
        pattern: File names in a folder of frames.

    Raises:
        ValueError: if an option does not belong to the source, or is out of its range.
        TypeError: if ``given`` is none of these.
    """
    if isinstance(given, Source):
        return given
    text = str(given) if isinstance(given, (int, str, os.PathLike)) else ""
    camera = re.fullmatch(r"(?:/dev/video)?(\d+)", text)
    is_stream = camera or (isinstance(given, str) and is_address(given))
    is_file = not is_stream and isinstance(given, (str, os.PathLike, bytes, np.ndarray, Tensor))
    foreign = {} if is_file else {"speed": speed, "repeat": repeat or None, "fps": fps}
    foreign |= {} if is_stream else {"attempts": attempts, "options": options or None}
    if wrong := [f"{key}={value!r}" for key, value in foreign.items() if value is not None]:
        kind = "a video file" if is_file else "a stream" if is_stream else "an iterable"
        raise ValueError(f"{', '.join(wrong)}: {kind} has no such option; leave it out")
    for key, value in {"speed": speed, "fps": fps, "timeout": timeout}.items():
        if value is not None and not value > 0:
            raise ValueError(f"{key} is {value!r}; expected a number above 0")
    if is_file:
        name = os.fspath(given) if isinstance(given, (str, os.PathLike)) else "video in memory"
        return Source(name, partial(_play, given, speed or 1.0, repeat, fps, pattern))
    if is_stream:
        address, kind = (f"/dev/video{camera[1]}", "v4l2") if camera else (given, None)
        chosen = dict(options or {})
        if not camera:  # UDP, the default of FFmpeg for RTSP, loses packets.
            chosen = {"rtsp_transport": "tcp", **chosen, "protocol_whitelist": PROTOCOLS}
        name, connect = without_password(address), partial(_connect, address, kind, timeout, chosen)
        return Source(name, partial(_stay_connected, name, connect, attempts))
    if isinstance(given, Iterable):
        return Source(type(given).__name__, partial(_take, given))
    raise TypeError(
        f"the source is a {type(given).__name__}; expected a camera (0, /dev/video0), an address "
        "(rtsp://host/stream), a video file, or an iterable of (time, uint8 frame (H, W, 3))"
    )
