"""Rules of live prediction: when an answer is due, of how many frames, and which label it shows."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

TOLERANCE = 1e-6  # seconds, or steps: rounding of times
HANDFUL = 5  # counts that the control chooses from
WEIGHT = 0.3  # of the newest answer in the time per frame
MARGIN = 0.7  # share of the interval that an answer of a higher count may take
HOLD = 5.0  # seconds during which a higher count must fit before it is used


@dataclass(frozen=True)
class Frame:
    """A frame of a stream, reduced to the input of the network.

    Attributes:
        number: Of the frame in the stream, from 0; dropped frames count.
        time: In the stream, seconds after its first frame.
        captured: Time of the clock when it was captured.
        pixels: uint8 RGB (C, H, W), after the preprocessing of the network.
        stride: Frames of the stream that it stands for.
        part: Number of interruptions before it.
    """

    number: int
    time: float
    captured: float
    pixels: Tensor
    stride: int = 1
    part: int = 0


class Window:
    """The newest frames of a stream, and the frames with which answers are due.

    A frame is kept until it is `seconds` older than the newest one. The first answer is due when
    the frames cover the window, the others at steps of so many seconds of the stream.
    """

    def __init__(self, seconds: float, step: float) -> None:
        self._seconds, self._step = seconds, step
        self.frames: deque[Frame] = deque()
        self.clear()

    def clear(self) -> None:
        """Begin again: drop all frames."""
        self.frames.clear()
        self._has_dropped = False
        self._first: float | None = None  # time of the first answer
        self._steps = 0  # answers that were due since then

    def add(self, frame: Frame) -> bool:
        """Add the newest frame; returns whether an answer is due with it."""
        self.frames.append(frame)
        while self.frames[0].time <= frame.time - self._seconds + TOLERANCE:
            self.frames.popleft()
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
        count = len(self.frames)
        span = self.frames[-1].time - self.frames[0].time if count > 1 else 0.0
        return span > 0 and count >= self._seconds * (count - 1) / span - 0.5


def handful(counts: Sequence[int]) -> list[int]:
    """At most five of the counts, ascending: the ends, and those nearest to equal ratios.

    >>> handful([4, 8, 16]), handful(range(2, 21))
    ([4, 8, 16], [2, 4, 6, 11, 20])
    """
    wanted = np.geomspace(min(counts), max(counts), HANDFUL)
    return sorted({min(counts, key=lambda count: abs(count - each)) for each in wanted})


class LoadControl:
    """Chooses the largest number of frames whose answers are ready before the next one is due.

    The rule is that of docs/live.md, "Load".

    Args:
        seconds: Time of an answer on the idle machine, by count.
        largest: The reason to give while the largest count is used.

    Attributes:
        why: The reason for the number of frames.
    """

    def __init__(self, seconds: Mapping[int, float], largest: str = "the largest count") -> None:
        self._seconds = {count: max(seconds[count], 1e-9) for count in sorted(seconds)}
        self._counts = list(self._seconds)
        self._place = len(self._counts) - 1
        self._largest = self.why = largest
        self._factor, self._fits_since = 1.0, math.inf

    @property
    def count(self) -> int:
        """The number of frames for the next answer."""
        return self._counts[self._place]

    def update(self, seconds: float, interval: float, now: float, *, late: bool = False) -> None:
        """Take account of an answer.

        Args:
            seconds: It took.
            interval: Until the next is due, in seconds of the clock.
            now: Time of the clock.
            late: Whether frames came so late since the last answer that they were dropped.
        """
        self._factor += WEIGHT * (seconds / self._seconds[self.count] - self._factor)
        expected = self._factor * self._seconds[self.count]
        if self._place and (late or expected > interval):
            cause = "frames came late" if late else f"{_ms(expected)} in {_ms(interval)}"
            self.why = f"{self.count} frames are too slow: {cause}"
            self._move(-1)
        elif self._place + 1 < len(self._counts):
            following = self._counts[self._place + 1]
            expected = self._factor * self._seconds[following]
            fits = not late and expected <= MARGIN * interval
            self._fits_since = min(self._fits_since, now) if fits else math.inf
            if now - self._fits_since >= HOLD:
                self.why = f"{following} frames fit again: {_ms(expected)} in {_ms(interval)}"
                self._move(1)
                if self._place + 1 == len(self._counts):
                    self.why = self._largest

    def _move(self, places: int) -> None:
        self._place, self._fits_since = self._place + places, math.inf


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if math.isfinite(seconds) else "any time"


class SteadyLabels:
    """Averages the probabilities of successive answers, and keeps the shown labels steady.

    The rule is that of docs/live.md, "Labels". With several labels per video, each class is shown
    or not: that changes if its average is at least the margin beyond 0.5.

    Args:
        seconds: Time constant of the average; 0: no average.
        margin: Of probabilities, by which another label must lead to be shown.
        multi_label: Whether a video has any number of the classes.

    Attributes:
        probabilities: The averages (K,); None before the first answer.
        shown: Indices of the shown classes; None before the first answer.
    """

    def __init__(self, seconds: float, margin: float, *, multi_label: bool = False) -> None:
        self._seconds, self._margin, self._multi_label = seconds, margin, multi_label
        self._time = 0.0
        self.probabilities: Tensor | None = None
        self.shown: tuple[int, ...] | None = None

    def update(self, probabilities: Tensor, time: float) -> bool:
        """Take account of an answer; returns whether the shown labels change.

        Args:
            probabilities: (K,).
            time: Of the answer in the stream, in seconds; ascending.
        """
        if self.probabilities is None:
            self.probabilities = probabilities.clone()
        else:
            s, passed = self._seconds, time - self._time
            weight = 1 - math.exp(-passed / s) if s else 1.0
            self.probabilities = self.probabilities.lerp(probabilities, weight)
        self._time, before = time, self.shown
        self.shown = self._several() if self._multi_label else self._one()
        return self.shown != before

    def _one(self) -> tuple[int, ...]:
        leader = int(self.probabilities.argmax())
        if self.shown is not None:
            lead = self.probabilities[leader] - self.probabilities[self.shown[0]]
            if lead < self._margin:
                return self.shown
        return (leader,)

    def _several(self) -> tuple[int, ...]:
        margin = 0.0 if self.shown is None else self._margin
        shown = set(self.shown or ())
        shown |= {*(self.probabilities >= 0.5 + margin).nonzero().flatten().tolist()}
        shown -= {*(self.probabilities <= 0.5 - margin).nonzero().flatten().tolist()}
        return tuple(sorted(shown))
