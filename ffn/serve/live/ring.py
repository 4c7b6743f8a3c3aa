"""The last seconds of a stream in memory, and the frames at which answers are due."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

TOLERANCE = 1e-6  # seconds, or frames: rounding of times
SHORTEST = 1e-3  # seconds of a window; no camera has a shorter interval


@dataclass(frozen=True)
class Frame:
    """A frame of a stream, reduced to the input of the network.

    Attributes:
        number: of the frame in the stream, from 0; dropped frames count.
        time: in the stream, seconds after its first frame.
        captured: time of the clock when it was captured.
        pixels: uint8 RGB (C, H, W), after the preprocessing of the network.
        spent_ms: time to convert and transform it.
    """

    number: int
    time: float
    captured: float
    pixels: Tensor
    spent_ms: float


class Ring:
    """The newest frames of a stream, of at most so many seconds and bytes.

    A frame is kept until it is `seconds` older than the newest one. If the frames of that time
    exceed `max_bytes`, the oldest are dropped.

    Args:
        seconds: length of the window.
        max_bytes: of all pixels; the newest frame is kept in any case.

    Raises:
        ValueError: the window is shorter than `SHORTEST`.
    """

    def __init__(self, seconds: float, max_bytes: int) -> None:
        if seconds < SHORTEST:
            raise ValueError(
                f"window is {seconds:g} s; expected {SHORTEST:g} s or more. Give a window of "
                "several frames of the stream"
            )
        self.seconds, self.max_bytes = seconds, max_bytes
        self.bytes = 0
        self._frames: deque[Frame] = deque()
        self._was_full = False

    def add(self, frame: Frame) -> int:
        """Add the newest frame; returns how many of the window were dropped for their bytes."""
        self._frames.append(frame)
        self.bytes += frame.pixels.nbytes
        while self._frames[0].time <= frame.time - self.seconds + TOLERANCE:
            self._drop_oldest()
        dropped = 0
        while self.bytes > self.max_bytes and len(self._frames) > 1:
            self._drop_oldest()
            dropped += 1
        return dropped

    def _drop_oldest(self) -> None:
        self.bytes -= self._frames.popleft().pixels.nbytes
        self._was_full = True

    def clear(self) -> None:
        """Drop all frames."""
        self._frames.clear()
        self.bytes, self._was_full = 0, False

    def frames(self) -> list[Frame]:
        """The frames, oldest first."""
        return list(self._frames)

    @property
    def newest(self) -> Frame | None:
        """The newest frame; None if there is none."""
        return self._frames[-1] if self._frames else None

    @property
    def full(self) -> bool:
        """Whether the frames cover the window; each is shown as long as their mean interval."""
        if self._was_full:
            return True
        count = len(self._frames)
        span = self._frames[-1].time - self._frames[0].time if count > 1 else 0.0
        return span > 0 and count >= self.seconds * (count - 1) / span - 0.5


class Schedule:
    """Tells the frames with which answers are due: the first full window, then at equal steps.

    Args:
        every: frames from one answer to the next; or
        step: seconds of the stream from one answer to the next.

    Raises:
        ValueError: the step is shorter than `TOLERANCE`.
    """

    def __init__(self, every: int | None, step: float | None) -> None:
        if step is not None and step < TOLERANCE:
            raise ValueError(
                f"step is {step:g} s; expected {TOLERANCE:g} s or more. For an answer with each "
                "frame, give every=1 (--every 1)"
            )
        self._every, self._step = every, step
        self._size = every if step is None else step
        self.reset()

    def reset(self) -> None:
        """Begin again, at the next full window."""
        self._first: float | None = None
        self._steps = 0

    def is_due(self, frame: Frame, full: bool) -> bool:
        """Whether an answer is due with a frame.

        Args:
            frame: the newest one.
            full: whether the window is full.
        """
        place = frame.number if self._step is None else frame.time
        if self._first is None:
            if not full:
                return False
            self._first = place
        passed = math.floor((place - self._first) / self._size + TOLERANCE)
        if passed < self._steps:
            return False
        self._steps = passed + 1
        return True

    def interval(self, window: Sequence[Frame]) -> float:
        """Seconds of the clock from one answer to the next, at the mean rate of a window.

        It is infinite for a window of a single frame, which has no rate.
        """
        captured = window[-1].captured - window[0].captured
        if len(window) < 2 or captured <= 0:
            return math.inf
        if self._step is None:
            return self._every * captured / (len(window) - 1)
        return self._step * captured / (window[-1].time - window[0].time)
