"""Sources of live prediction: files played as if live, cameras, streams, iterables of frames."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from time import monotonic

import numpy as np
from torch import Tensor

from ffn.data import VideoError
from ffn.data.decoding import PATTERN
from ffn.data.decoding.container import ffmpeg_message, to_rgb
from ffn.limits import FRAME_PIXELS
from ffn.serve.inputs import Input, frame_times, frames_in_order, is_address, open_input

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


class Clock:
    """The clock of this machine. All waiting of live prediction goes through it."""

    def now(self) -> float:
        """Seconds since an arbitrary moment; never steps back."""
        return monotonic()

    def wait(
        self,
        condition: threading.Condition,
        ready: Callable[[], bool],
        seconds: float | None = None,
    ) -> bool:
        """Wait, with the condition held, until something is ready or the time has passed."""
        return condition.wait_for(ready, seconds)


class Pace:
    """What a source and its reader share: the clock, events, and whether the reader is closed.

    Args:
        clock: For all times and waits.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock, self.changed = clock, threading.Condition()
        self.closed = False
        self.events: list[SourceEvent] = []

    def sleep(self, seconds: float) -> bool:
        """Wait; returns False if the reader was closed."""
        if seconds > 0 and not self.closed:
            with self.changed:
                self.clock.wait(self.changed, lambda: self.closed, seconds)
        return not self.closed

    def report(self, event: SourceEvent) -> None:
        """Tell the reader of an event."""
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()


class FileSource:
    """A video at its own rate, as if it were live; see :func:`open_source`."""

    def __init__(
        self, given: Input, *, speed: float, repeat: bool, fps: float | None, pattern: str
    ) -> None:
        is_path = isinstance(given, (str, os.PathLike))
        self.name = os.fspath(given) if is_path else "video in memory"
        self._given, self._speed, self._repeat = given, speed, repeat
        self._fps, self._pattern = fps, pattern

    def frames(self, pace: Pace) -> Iterator[Arrival]:
        """The frames, each when it is due; raises VideoError if the video cannot be read."""
        with open_input(self._given, pattern=self._pattern) as (_, video):
            times, duration = frame_times(video, self._fps)
            began, offset, goes_on = pace.clock.now(), 0.0, True
            while goes_on:
                for index, image in frames_in_order(video, range(len(video))):
                    time = offset + float(times[index])
                    due = began + time / self._speed
                    if not pace.sleep(due - pace.clock.now()):
                        return
                    yield Arrival(time, due, lambda image=image: image)
                offset, goes_on = offset + duration, self._repeat


class IterableSource:
    """Frames of an iterable, which are live when it gives them; see :func:`open_source`."""

    def __init__(self, pairs: Iterable[tuple[float, np.ndarray | Tensor]]) -> None:
        self.name, self._pairs = type(pairs).__name__, pairs

    def frames(self, pace: Pace) -> Iterator[Arrival]:
        """The frames as they come.

        Raises:
            ValueError: if a frame is not uint8 (H, W, 3), or not later than the one before.
        """
        first = last = None
        for time, frame in self._pairs:
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
            yield Arrival(float(time - first), pace.clock.now(), lambda image=image: image)
            if not pace.sleep(0):
                return


@dataclass(frozen=True)
class Grab:
    """A frame of a connection.

    Attributes:
        time: That the sender gave to it, in seconds; None if there is none.
        image: Gives its pixels, uint8 RGB (H, W, 3).
    """

    time: float | None
    image: Callable[[], np.ndarray]


class StreamSource:
    """A camera or a stream of a network. After an interruption, it connects again.

    The wait before attempt n is min(30 s, 2^(n-1) s). The first connection is tried once, so that a
    wrong address is an error.

    Args:
        name: For people.
        connect: Opens the stream and gives its frames.
        attempts: To connect again after an interruption, until a frame arrives; None: any number.
    """

    def __init__(
        self, name: str, connect: Callable[[], Iterator[Grab]], *, attempts: int | None = None
    ) -> None:
        self.name, self._connect, self._attempts = name, connect, attempts

    def frames(self, pace: Pace) -> Iterator[Arrival]:
        """The frames as they come; raises VideoError after the last attempt."""
        times, attempt = _StreamTimes(), 0
        while True:
            state, error = "failed", None
            try:
                with closing(self._connect()) as grabs:
                    for grab in grabs:
                        if state == "failed":
                            pace.report(SourceEvent("connected", self.name, attempt))
                            state, attempt = "interrupted", 0
                            times.begin()
                        yield times.arrival(grab, pace.clock.now())
            except VideoError as raised:
                error = raised
            if times.began is None:
                raise error or VideoError(self.name, "the stream has no frame")
            cause = error.cause if error else "the stream has ended"
            if self._attempts is not None and attempt >= self._attempts:
                if error or attempt:
                    raise VideoError(self.name, f"{cause}; gave up after {attempt} attempts")
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
        self._is_new_part = False
        self._sent: float | None = None  # last time of the sender in this part
        self._time = self._delay = self._least = 0.0  # of the frame before

    def begin(self) -> None:
        """The next frame is the first of a connection."""
        self._is_new_part = True

    def arrival(self, grab: Grab, now: float) -> Arrival:
        """A frame that arrives now."""
        is_first = self.began is None
        self.began = now if is_first else self.began
        elapsed = now - self.began
        if None in (grab.time, self._sent) or grab.time == self._sent:  # by arrival
            time = elapsed - self._delay
        else:
            time = grab.time + self._offset
        if not is_first:
            if self._is_new_part or not 0 <= time - self._time <= BREAK:
                self._is_new_part, self._sent = True, None
                time = elapsed
            # Frames that came faster than they were sent have later times than now.
            time = max(time, self._time + SHORTEST)
        is_new_part, self._is_new_part = self._is_new_part, False
        if grab.time is not None:
            if self._sent is None:
                self._offset = time - grab.time
            self._sent = grab.time
        if is_new_part:
            self._least = 0.0
        else:
            self._least += DRIFT * (time - self._time)
        self._time, self._delay = time, elapsed - time
        self._least = min(self._least, self._delay)
        captured = now - (self._delay - self._least)
        return Arrival(time, captured, grab.image, is_new_part and not is_first)


def open_camera(device: str, timeout: float, options: Mapping[str, str]) -> Iterator[Grab]:
    """The frames of a camera, through Video4Linux.

    Raises:
        VideoError: if it cannot be opened or read.
    """
    if not os.path.exists(device):
        raise VideoError(device, "no such camera; `ls /dev/video*` lists those of Linux")
    return _grabs(device, timeout, dict(options), kind="v4l2")


def open_stream(address: str, timeout: float, options: Mapping[str, str]) -> Iterator[Grab]:
    """The frames at an address; RTSP runs over TCP by default, since UDP loses packets.

    Raises:
        VideoError: if it cannot be opened or read, or has no video.
    """
    chosen = {"rtsp_transport": "tcp", **options, "protocol_whitelist": PROTOCOLS}
    return _grabs(address, timeout, chosen)


def _grabs(
    address: str, timeout: float, options: dict[str, str], kind: str | None = None
) -> Iterator[Grab]:
    import av

    def failure(what: str, error: Exception) -> VideoError:
        stopped = isinstance(error, av.error.ExitError)  # what FFmpeg says at a timeout
        cause = f"no data for {timeout:g} s" if stopped else ffmpeg_message(error)
        return VideoError(without_password(address), f"{what}: {cause}")

    try:
        container = av.open(
            address, format=kind, options=options, timeout=timeout, metadata_errors="ignore"
        )
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise failure("cannot be opened", error) from None
    try:
        stream = container.streams.best("video")
        if stream is None or stream.codec_context is None:
            raise VideoError(without_password(address), "it has no video that FFmpeg decodes")
        stream.codec_context.thread_count = 1
        stream.codec_context.options = {"max_pixels": str(FRAME_PIXELS.value)}
        with closing(container.demux(stream)) as packets:  # an open generator keeps its memory
            for packet in packets:
                try:
                    frames = packet.decode()
                except av.error.InvalidDataError:  # damaged on its way
                    continue
                for frame in frames:
                    if not frame.is_corrupt:
                        yield Grab(frame.time, partial(to_rgb, frame))
    except (av.error.FFmpegError, OSError) as error:
        raise failure("interrupted", error) from None
    finally:
        container.close()


def without_password(address: str) -> str:
    """An address without the name and the password of a user, for messages and logs.

    All before the last @ is left out, since a password may contain @, / and ?.

    >>> without_password("rtsp://admin:s/e@ret@camera/1")
    'rtsp://camera/1'
    """
    return re.sub("://.*@", "://", address)


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
) -> FileSource | StreamSource | IterableSource:
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
    if isinstance(given, (FileSource, StreamSource, IterableSource)):
        return given
    camera = camera_path(given)
    is_stream = camera is not None or (isinstance(given, str) and is_address(given))
    is_file = not is_stream and isinstance(given, (str, os.PathLike, bytes, np.ndarray, Tensor))
    foreign = {} if is_file else {"speed": speed, "repeat": repeat or None, "fps": fps}
    foreign |= {} if is_stream else {"attempts": attempts, "options": options or None}
    for key, value in foreign.items():
        if value is not None:
            owner = "a camera or an address" if key in ("attempts", "options") else "a video file"
            raise ValueError(f"{key} is {value!r}; it is only for {owner}")
    for key, value in {"speed": speed, "fps": fps, "timeout": timeout}.items():
        if value is not None and not value > 0:
            raise ValueError(f"{key} is {value!r}; expected a number above 0")
    if is_file:
        speed = 1.0 if speed is None else speed
        return FileSource(given, speed=speed, repeat=repeat, fps=fps, pattern=pattern)
    if camera is not None:
        connect = partial(open_camera, camera, timeout, options or {})
        return StreamSource(camera, connect, attempts=attempts)
    if is_stream:
        connect = partial(open_stream, given, timeout, options or {})
        return StreamSource(without_password(given), connect, attempts=attempts)
    if isinstance(given, Iterable):
        return IterableSource(given)
    raise TypeError(
        f"the source is a {type(given).__name__}; expected a camera (0, /dev/video0), an address "
        "(rtsp://host/stream), a video file, or an iterable of (time, uint8 frame (H, W, 3))"
    )


def camera_path(given: object) -> str | None:
    """The device of a camera: of ``0``, "0" and "/dev/video0" it is "/dev/video0"; else None."""
    text = str(given) if isinstance(given, (int, str, os.PathLike)) else ""
    if text.isdecimal():
        return f"/dev/video{text}"
    return text if re.fullmatch(r"/dev/video\d+", text) else None
