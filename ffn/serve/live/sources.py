"""Sources of live prediction: files played as if live, cameras, streams, iterables of frames."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic

import numpy as np
from torch import Tensor

from ffn.data import VideoError
from ffn.data.decoding import PATTERN
from ffn.data.decoding.container import to_rgb, video_stream
from ffn.data.decoding.opening import ffmpeg_message
from ffn.files import without_password
from ffn.limits import FRAME_PIXELS
from ffn.serve.inputs import Input, frame_times, is_address, open_input

Grab = tuple[float | None, Callable[[], np.ndarray]]
"""A frame of a connection: the sender's time in seconds, if any; what gives its RGB pixels."""

# What an address may open, also through others: no local files.
PROTOCOLS = "rtsp,rtsps,rtp,srtp,rtmp,rtmps,srt,udp,tcp,tls,http,https,httpproxy,crypto"
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds before the first new attempt, and before any
BREAK = 10.0  # seconds by which the times of a stream may jump ahead
SHORTEST = 1e-3  # least seconds from a frame to the next one
DRIFT = 1e-3  # largest difference in speed between the clocks of a camera and of this machine


@dataclass(frozen=True)
class Arrival:
    """A frame that a source gives.

    Attributes:
        time: In the stream, seconds after its first frame.
        captured: Time of the clock when it was captured, as far as that is known.
        image: Gives its pixels, uint8 RGB (H, W, 3).
        is_new_part: Whether frames before it are missing, as after an interruption.
    """

    time: float
    captured: float
    image: Callable[[], np.ndarray]
    is_new_part: bool = False


@dataclass(frozen=True)
class SourceEvent:
    """A change of the state of a source.

    Attributes:
        state: "connected", "interrupted" or "failed" (an attempt to connect).
        message: What happened.
        attempt: Failed attempts since the interruption.
        wait: Seconds until the next attempt; None if there is none.
    """

    state: str
    message: str
    attempt: int = 0
    wait: float | None = None


class Pace:
    """The clock of a source and its reader, on which both wait; their events and their end.

    Attributes:
        changed: Held to read or to change what both share.
        closed: Whether the reader is closed.
        events: Of the source, until the reader takes them.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.closed = False
        self.events: list[SourceEvent] = []

    def now(self) -> float:
        """Seconds since an arbitrary moment; never steps back."""
        return monotonic()

    def wait(self, ready: Callable[[], bool], seconds: float | None = None) -> None:
        """Wait, with `changed` held, until something is ready or the time has passed."""
        self.changed.wait_for(ready, seconds)

    def sleep(self, seconds: float) -> bool:
        """Wait; returns False if the reader was closed."""
        if seconds > 0 and not self.closed:
            with self.changed:
                self.wait(lambda: self.closed, seconds)
        return not self.closed

    def report(self, event: SourceEvent) -> None:
        """Tell the reader of an event."""
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()


@dataclass(frozen=True)
class Source:
    """A source with its options; see :func:`open_source`.

    Attributes:
        name: For people.
        frames: Gives the frames when they are due, or as they come. It raises VideoError if the
            source cannot be read.
    """

    name: str
    frames: Callable[[Pace], Iterator[Arrival]]


def _play(
    given: Input, speed: float, repeat: bool, fps: float | None, pattern: str, pace: Pace
) -> Iterator[Arrival]:
    """The frames of a video at its own rate."""
    with open_input(given, pattern=pattern) as (_, video):
        times, duration = frame_times(video, fps)
        began, offset, goes_on = pace.now(), 0.0, True
        while goes_on:
            for index, image in video.in_order(range(len(video))):
                time = offset + float(times[index])
                due = began + time / speed
                if not pace.sleep(due - pace.now()):
                    return
                yield Arrival(time, due, lambda image=image: image)
            offset, goes_on = offset + duration, repeat


def _take(pairs: Iterable[tuple[float, np.ndarray | Tensor]], pace: Pace) -> Iterator[Arrival]:
    """The frames of an iterable, which are live when it gives them.

    Raises:
        ValueError: if a frame is not uint8 (H, W, 3), or not later than the one before.
    """
    first = last = None
    for time, frame in pairs:
        image = frame.detach().cpu().numpy() if isinstance(frame, Tensor) else np.asarray(frame)
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
            came = f"{image.dtype} of the shape {image.shape}"
            raise ValueError(f"a frame is {came}; expected uint8 RGB (H, W, 3)")
        first = time if first is None else first
        if last is not None and not time > last:
            raise ValueError(
                f"a frame has the time {time}, the one before {last}; expected ascending times"
            )
        last = time
        yield Arrival(float(time - first), pace.now(), lambda image=image: image)


def _stay_connected(
    name: str, connect: Callable[[], Iterator[Grab]], attempts: int | None, pace: Pace
) -> Iterator[Arrival]:
    """The frames of a camera or a stream. After an interruption, it connects again.

    The wait before attempt n is min(30 s, 2^(n-1) s). The first connection is tried once, so that a
    wrong address is an error.

    Raises:
        VideoError: after so many failed attempts in a row; None: never.
    """
    times, attempt = _StreamTimes(), 0
    while True:
        state, error = "failed", None
        try:
            with closing(connect()) as grabs:
                for sent, image in grabs:
                    is_new_part = state == "failed"
                    if is_new_part:
                        pace.report(SourceEvent("connected", name, attempt))
                        state, attempt = "interrupted", 0
                    yield times.arrival(sent, image, pace.now(), is_new_part)
        except VideoError as raised:
            error = raised
        if times.began is None:
            raise error or VideoError(name, "the stream has no frame")
        cause = error.cause if error else "the stream has ended"
        if attempts is not None and attempt >= attempts:
            if error or attempt:
                raise VideoError(name, f"{cause}; gave up after {attempt} attempts")
            return
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(attempt, 16))
        pace.report(SourceEvent(state, cause, attempt, wait))
        attempt += 1
        if not pace.sleep(wait):
            return


class _StreamTimes:
    """Times of the frames of a stream, over interruptions.

    They are those that the sender gave to the frames, as long as these ascend by at most `BREAK`.
    Otherwise, and after an interruption, they go on with the time of arrival.

    A frame is late by its delay beyond the smallest one before. That smallest delay may grow by
    `DRIFT` of the time, since clocks differ.
    """

    def __init__(self) -> None:
        self.began: float | None = None  # time of the clock at the first frame
        self._offset: float | None = None  # from the times of the sender in this part
        self._time = self._delay = self._least = 0.0  # of the frame before

    def arrival(
        self, sent: float | None, image: Callable[[], np.ndarray], now: float, is_new_part: bool
    ) -> Arrival:
        """A frame that arrives now."""
        is_first = self.began is None
        self.began = now if is_first else self.began
        elapsed = now - self.began
        if sent is None or self._offset is None:  # as late as the frame before
            time = elapsed - self._delay
        else:
            time = sent + self._offset
        if is_new_part or not 0 <= time - self._time <= BREAK:
            is_new_part, time, self._offset, self._least = True, elapsed, None, 0.0
        if not is_first:
            # Frames that came faster than they were sent have later times than now.
            time = max(time, self._time + SHORTEST)
        if sent is not None and self._offset is None:
            self._offset = time - sent
        delay = elapsed - time
        self._least = min(self._least + DRIFT * (time - self._time), delay)
        self._time, self._delay = time, delay
        return Arrival(time, now - (delay - self._least), image, is_new_part and not is_first)


def _connect(
    address: str, timeout: float, options: dict[str, str], kind: str | None = None
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
            if stream is None or stream.codec_context is None:
                raise VideoError(name, "it has no video that FFmpeg decodes")
            stream.codec_context.thread_count = 1
            stream.codec_context.options = {"max_pixels": str(FRAME_PIXELS.value)}
            with closing(container.demux(stream)) as packets:  # an open generator keeps its memory
                for packet in packets:
                    with suppress(av.error.InvalidDataError):  # damaged on its way
                        for frame in packet.decode():
                            if not frame.is_corrupt:
                                yield frame.time, partial(to_rgb, frame)
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
        given: A camera, as ``0`` or ``/dev/video0``; an address, as ``rtsp://host/stream``; the
            path of a video file or a folder of frames; frames in memory; or an iterable of pairs
            (time in seconds, uint8 frame (H, W, 3)).
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
    camera = f"/dev/video{text}" if text.isdecimal() else text
    is_camera = re.fullmatch(r"/dev/video\d+", camera) is not None
    is_stream = is_camera or (isinstance(given, str) and is_address(given))
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
    if is_camera:
        connect = partial(_connect, camera, timeout, dict(options or {}), kind="v4l2")
        return Source(camera, partial(_stay_connected, camera, connect, attempts))
    if is_stream:
        # UDP, the default of FFmpeg for RTSP, loses packets.
        chosen = {"rtsp_transport": "tcp", **(options or {}), "protocol_whitelist": PROTOCOLS}
        name, connect = without_password(given), partial(_connect, given, timeout, chosen)
        return Source(name, partial(_stay_connected, name, connect, attempts))
    if isinstance(given, Iterable):
        return Source(type(given).__name__, partial(_take, given))
    raise TypeError(
        f"the source is a {type(given).__name__}; expected a camera (0, /dev/video0), an address "
        "(rtsp://host/stream), a video file, or an iterable of (time, uint8 frame (H, W, 3))"
    )
