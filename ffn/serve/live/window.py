"""Keep the last seconds of a stream in memory, and tell at which frames answers are due."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

TOLERANCE = 1e-6  # seconds, or steps: rounding of times


@dataclass(frozen=True)
class Frame:
    """A frame of a stream, reduced to the input of the network.

    Attributes:
        number: Of the frame in the stream, from 0; dropped frames count.
        time: In the stream, seconds after its first frame.
        captured: Time of the clock when it was captured.
        pixels: uint8 RGB (C, H, W), after the preprocessing of the network.
        spent_ms: Time to convert and transform it.
    """

    number: int
    time: float
    captured: float
    pixels: Tensor
    spent_ms: float


class Window:
    """The newest frames of a stream, and the frames with which answers are due.

    A frame is kept until it is `seconds` older than the newest one. The first answer is due when
    the frames cover the window, the others at equal steps.

    Args:
        seconds: Length of the window.
        step: Seconds of the stream from one answer to the next.
    """

    def __init__(self, seconds: float, step: float) -> None:
        self._seconds, self._step = seconds, step
        self._frames: deque[Frame] = deque()
        self.clear()

    def clear(self) -> None:
        """Begin again: drop all frames."""
        self._frames.clear()
        self._has_dropped = False
        self._first: float | None = None  # time of the first answer
        self._steps = 0  # answers that were due since then

    def add(self, frame: Frame) -> bool:
        """Add the newest frame; returns whether an answer is due with it."""
        self._frames.append(frame)
        while self._frames[0].time <= frame.time - self._seconds + TOLERANCE:
            self._frames.popleft()
            self._has_dropped = True
        if self._first is None:
            if not self._is_full():
                return False
            self._first = frame.time
        passed = math.floor((frame.time - self._first) / self._step + TOLERANCE)
        if passed < self._steps:
            return False
        self._steps = passed + 1
        return True

    def _is_full(self) -> bool:
        """Whether the frames cover the window; each is shown as long as their mean interval."""
        if self._has_dropped:
            return True
        count = len(self._frames)
        span = self._frames[-1].time - self._frames[0].time if count > 1 else 0.0
        return span > 0 and count >= self._seconds * (count - 1) / span - 0.5

    def frames(self) -> list[Frame]:
        """The frames, oldest first."""
        return list(self._frames)

    def interval(self, frames: Sequence[Frame]) -> float:
        """Seconds of the clock from one answer to the next, at the mean rate of some frames.

        It is infinite for a single frame, which has no rate.
        """
        captured = frames[-1].captured - frames[0].captured
        if len(frames) < 2 or captured <= 0:
            return math.inf
        return self._step * captured / (frames[-1].time - frames[0].time)
