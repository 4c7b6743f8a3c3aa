"""Sources of live prediction: files played as if live, streams that reconnect, own iterators."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from ffn.data import VideoError
from ffn.data.decoding import PATTERN
from ffn.serve.inputs import Input, frame_times, frames_in_order, is_address, open_input
from ffn.serve.live.stream import (
    Grab,
    StreamOptions,
    camera_path,
    open_camera,
    open_stream,
    without_password,
)

FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds before the first new attempt, and before any
BREAK = 10.0  # seconds by which the times of a stream may jump ahead
BETWEEN_PARTS = 1e-3  # least seconds from the last frame to the first one of a new connection
DRIFT = 1e-3  # largest difference in speed between the clocks of a camera and of this machine


@dataclass(frozen=True)
class Arrival:
    """A frame that a source gives.

    Attributes:
        time: in the stream, seconds after its first frame.
        captured: time of the clock when it was captured, as far as that is known.
        image: gives its pixels, uint8 RGB (H, W, 3).
        is_new_part: frames before it are missing, as after an interruption.
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
        message: what happened.
        attempt: failed attempts since the interruption.
        wait: seconds until the next attempt; None if there is none.
    """

    state: str
    message: str
    attempt: int = 0
    wait: float | None = None


class Pace(Protocol):
    """What a source needs of the reader: the clock, and a place for events."""

    def now(self) -> float:
        """Time of the clock."""

    def sleep(self, seconds: float) -> bool:
        """Wait; returns False if the prediction was closed."""

    def report(self, event: SourceEvent) -> None:
        """Tell of an event."""


class Source(Protocol):
    """What live prediction reads.

    Attributes:
        name: for people.
    """

    name: str

    def frames(self, pace: Pace) -> Iterator[Arrival]:
        """The frames, each at its time; ends with the source or when ``pace`` is closed.

        Raises:
            VideoError: if it cannot be read.
        """


class FileSource:
    """A video at its own rate, as if it were live. A frame is given when its time has come.

    Args:
        given: the video, as for a predictor.
        speed: factor of its rate.
        repeat: play it again and again.
        fps: frames per second of a video without times.
        pattern: file names in a folder of frames.

    Raises:
        ValueError: if ``speed`` or ``fps`` is not above 0.
    """

    def __init__(
        self,
        given: Input,
        *,
        speed: float = 1.0,
        repeat: bool = False,
        fps: float | None = None,
        pattern: str = PATTERN,
    ) -> None:
        for key, value in {"speed": speed, "fps": fps}.items():
            if value is not None and not value > 0:
                raise ValueError(f"{key} is {value!r}; expected a number above 0")
        is_path = isinstance(given, (str, os.PathLike))
        self.name = os.fspath(given) if is_path else "video in memory"
        self._given, self._speed, self._repeat = given, speed, repeat
        self._fps, self._pattern = fps, pattern

    def frames(self, pace: Pace) -> Iterator[Arrival]:
        """See :class:`Source`."""
        with open_input(self._given, pattern=self._pattern) as (_, video):
            times, duration = frame_times(video, self._fps)
            began, offset, goes_on = pace.now(), 0.0, True
            while goes_on:
                for index, image in frames_in_order(video, range(len(video))):
                    time = offset + float(times[index])
                    due = began + time / self._speed
                    if not pace.sleep(due - pace.now()):
                        return
                    yield Arrival(time, due, lambda image=image: image)
                offset, goes_on = offset + duration, self._repeat


class StreamSource:
    """A camera or a stream of a network. After an interruption, it connects again.

    The wait before attempt n is min(30 s, 2^(n-1) s). The first connection is tried once, so that a
    wrong address is an error. Times of the stream are those that the sender gave to the frames; a
    frame without one, or with that of the frame before, is as much later than the frame before as
    it arrived later. After an interruption, or a jump of the times back or ahead by more than 10 s,
    they go on with the time of arrival, but always ascend: frames that came faster than they were
    sent, e.g. from a buffer, have later times than now.

    A frame is late by its delay beyond the smallest one before. That smallest delay may grow by
    0.1 % of the time, since clocks differ.

    Args:
        name: for people.
        connect: opens the stream and gives its frames.
        attempts: to connect again after an interruption, until a frame arrives; None: any number.
    """

    def __init__(
        self, name: str, connect: Callable[[], Iterator[Grab]], *, attempts: int | None = None
    ) -> None:
        self.name, self._connect, self._attempts = name, connect, attempts

    def frames(self, pace: Pace) -> Iterator[Arrival]:
        """See :class:`Source`."""
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
                        yield times.arrival(grab, pace.now())
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
    """Times of the frames of a stream, over interruptions; see :class:`StreamSource`."""

    def __init__(self) -> None:
        self.began: float | None = None  # time of the clock at the first frame
        self._is_new_part = False
        self._sent: float | None = None  # last time of the sender in this part
        self._time = self._delay = 0.0  # of the frame before

    def begin(self) -> None:
        """The next frame is the first of a connection."""
        self._is_new_part = True

    def arrival(self, grab: Grab, now: float) -> Arrival:
        """A frame that arrives now."""
        sent = grab.time
        first, self.began = self.began is None, now if self.began is None else self.began
        elapsed, soonest = now - self.began, self._time + BETWEEN_PARTS
        if sent is None or self._sent is None or sent == self._sent:  # by arrival
            time = elapsed - self._delay
            step = time - self._time
        else:
            time = sent + self._offset
            step = sent - self._sent
        is_new_part, self._is_new_part = self._is_new_part, False
        if is_new_part or not 0 <= step <= BREAK:
            is_new_part = True
            # Frames that came faster than they were sent have later times than now.
            time = elapsed if first else max(elapsed, soonest)
            self._sent, self._least = None, 0.0
        else:
            time = max(time, soonest)
            self._least += DRIFT * (time - self._time)
        if sent is not None:
            if self._sent is None:
                self._offset = time - sent
            self._sent = sent
        self._time, self._delay = time, elapsed - time
        self._least = min(self._least, self._delay)
        captured = now - (self._delay - self._least)
        return Arrival(time, captured, grab.image, is_new_part and not first)


class IteratorSource:
    """Frames of an iterator, which are live when it gives them.

    Args:
        pairs: time in seconds, ascending, and frame, uint8 RGB (H, W, 3), an array or a tensor.
    """

    def __init__(self, pairs: Iterable[tuple[float, np.ndarray | Tensor]]) -> None:
        self.name, self._pairs = type(pairs).__name__, pairs

    def frames(self, pace: Pace) -> Iterator[Arrival]:
        """See :class:`Source`.

        Raises:
            TypeError: if a frame is not uint8.
            ValueError: if it has another shape, or its time is not above that of the one before.
        """
        first = last = None
        for time, frame in self._pairs:
            image = _checked(frame)
            first = time if first is None else first
            if last is not None and not time > last:
                raise ValueError(f"a frame has the time {time}, the one before {last}; expected "
                                 "ascending times in seconds")  # fmt: skip
            last = time
            yield Arrival(float(time - first), pace.now(), lambda image=image: image)
            if not pace.sleep(0):
                return


def _checked(frame: np.ndarray | Tensor) -> np.ndarray:
    image = frame.detach().cpu().numpy() if isinstance(frame, Tensor) else np.asarray(frame)
    if image.dtype != np.uint8:
        raise TypeError(f"a frame is {image.dtype}; expected uint8, 0 to 255")
    if image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise ValueError(f"a frame has shape {image.shape}; expected (H, W, 3)")
    return image


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
        given: a camera, as ``0`` or ``/dev/video0``; an address, as ``rtsp://host/stream``; the
            path of a video file or a folder of frames; frames in memory; or an iterable of pairs
            (time in seconds, uint8 frame (H, W, 3)).
        speed, repeat, fps, pattern: of files, see :class:`FileSource`; ``speed`` is 1 by default.
        attempts: of cameras and addresses, see :class:`StreamSource`.
        timeout: of cameras and addresses: seconds to connect, and to wait for data.
        options: of cameras and addresses: options of FFmpeg, as ``{"rtsp_transport": "udp"}``. An
            option that the format does not have has no effect.

    Raises:
        ValueError: if an option does not belong to the source, or is out of its range.
        TypeError: if ``given`` is none of these.
        VideoError: if cameras are not supported on this system.
    """
    camera = camera_path(given)
    is_stream = camera is not None or (isinstance(given, str) and is_address(given))
    is_file = not is_stream and isinstance(given, (str, os.PathLike, bytes, np.ndarray, Tensor))
    of_files = {"speed": speed, "repeat": repeat or None, "fps": fps}
    of_streams = {"attempts": attempts, "options": options or None}
    foreign = ({} if is_file else of_files) | ({} if is_stream else of_streams)
    for key, value in foreign.items():
        if value is not None:
            owner = "a video file" if key in of_files else "a camera or an address"
            shown = without_password(given) if isinstance(given, str) else given
            raise ValueError(f"{key} is {value!r}; it is for {owner}, and the source is {shown!r}")
    if is_file:
        speed = 1.0 if speed is None else speed
        return FileSource(given, speed=speed, repeat=repeat, fps=fps, pattern=pattern)
    if is_stream:
        of_stream = StreamOptions(timeout, dict(options or {}))
        if camera is not None:
            connect: Callable[[], Iterator[Grab]] = lambda: open_camera(camera, of_stream)  # noqa: E731
        else:
            connect = lambda: open_stream(given, of_stream)  # noqa: E731
        return StreamSource(camera or without_password(given), connect, attempts=attempts)
    if hasattr(given, "frames") and hasattr(given, "name"):
        return given
    if isinstance(given, Iterable):
        return IteratorSource(given)
    raise TypeError(
        f"the source is a {type(given).__name__}; expected a camera (0, /dev/video0), an address "
        "(rtsp://host/stream), a video file, or an iterable of (time, uint8 frame (H, W, 3))"
    )
