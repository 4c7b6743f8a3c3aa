"""Read cameras and streams of a network with FFmpeg, and connect again after interruptions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from ffn.data import VideoError
from ffn.data.decoding.container import ffmpeg_message, to_rgb
from ffn.limits import FRAME_PIXELS

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


class Pace(Protocol):
    """What a source needs of the reader: the clock, and a place for events."""

    def now(self) -> float:
        """Time of the clock."""

    def sleep(self, seconds: float) -> bool:
        """Wait; returns False if the prediction was closed."""

    def report(self, event: SourceEvent) -> None:
        """Tell of an event."""


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
        """The frames as they come."""
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
