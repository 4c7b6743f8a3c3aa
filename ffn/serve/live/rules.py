"""Rules of live prediction: when an answer is due, of how many frames, and which label it shows."""

from __future__ import annotations

import math
import timeit
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffn.serve.clips import UNREAD

Clock = Callable[[], float]
"""Gives seconds since an arbitrary moment."""

TOLERANCE = 1e-6  # seconds: rounding of times
EARLY = 0.25  # of the interval of frames, by which their times may be rounded
HANDFUL = 5  # counts that the control chooses from
WEIGHT = 0.3  # of the newest answer in the time per frame
MARGIN = 0.7  # share of the interval that an answer of a higher count may take
HOLD = 5.0  # seconds during which a higher count must fit before it is used


class Frame(NamedTuple):
    """A frame of a stream."""

    time: float  # in the stream, seconds after its first frame
    captured: float  # time of the clock, as far as it is known; of files, when the frame is due
    part: int = 0  # interruptions before it
    number: int = 0  # in the stream; dropped frames count
    stride: int = 1  # frames of the stream that it stands for
    pixels: Tensor = UNREAD  # uint8 RGB (C, H, W), after the preprocessing of the network


class Window:
    """The newest frames of a stream, and the frames with which answers are due.

    A frame is kept until it is `seconds` older than the newest one, or the stream is interrupted.
    The first answer is due when the frames cover the window, the others at steps of so many seconds
    of the stream.

    Attributes:
        frames: In their order.
        is_due: Whether an answer is due with the newest one.
    """

    def __init__(self, seconds: float, step: float) -> None:
        self._seconds, self._step, self._due = seconds, step, 0.0
        self.frames: deque[Frame] = deque()
        self.is_due = True

    def add(self, frame: Frame) -> None:
        """Add the newest frame."""
        if not self.frames or self.frames[-1].part != frame.part:
            self.frames.clear()
            self._due = frame.time + self._seconds
        self.frames.append(frame)
        while self.frames[0].time <= frame.time - self._seconds + TOLERANCE:
            self.frames.popleft()
        over = frame.time + (1 + EARLY) * mean_interval(self.frames) - self._due
        self.is_due = over >= 0
        if self.is_due:
            self._due += self._step * math.floor(over / self._step + 1)


def mean_interval(frames: Sequence[Frame]) -> float:
    """Mean seconds from a frame to the next, for which each is shown; 0 for a single one."""
    return (frames[-1].time - frames[0].time) / max(1, len(frames) - 1)


def handful(counts: Sequence[int]) -> list[int]:
    """At most five of the counts, ascending: the ends, and those nearest to equal ratios.

    >>> handful([4, 8, 16]), handful(range(2, 21))
    ([4, 8, 16], [2, 4, 6, 11, 20])
    """
    wanted = np.geomspace(min(counts), max(counts), HANDFUL)
    return sorted({min(counts, key=lambda count: abs(count - each)) for each in wanted})


def fastest(run: Callable[[], object], now: Clock) -> float:
    """Seconds of the fastest of three runs, after one that builds the network."""
    return min(timeit.repeat(run, number=1, repeat=4, timer=now)[1:])


class LoadControl:
    """Chooses the largest number of frames whose answers are ready before the next one is due.

    The rule is that of docs/live.md, "Load".

    Args:
        seconds: Time of an answer at the start, by count.

    Attributes:
        count: The number of frames for the next answer.
        why: The reason for it.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        self._seconds = {count: max(seconds[count], 1e-9) for count in sorted(seconds)}
        *_, self.count = self._seconds
        self.why = "the largest count" if len(seconds) > 1 else ""
        self._factor, self._tight = 1.0, 0.0  # time at which the next higher count did not fit

    def update(self, seconds: float, interval: float, now: float, *, late: bool = False) -> None:
        """Take account of the time of an answer, and of the interval until the next is due.

        Args:
            seconds: The answer took.
            interval: In seconds of the clock, as is `now`.
            late: Whether frames came so late since the last answer that they were dropped.
        """
        self._factor += WEIGHT * (seconds / self._seconds[self.count] - self._factor)
        expected = {count: self._factor * each for count, each in self._seconds.items()}
        lower = [count for count in expected if count < self.count]
        higher = [count for count in expected if count > self.count]
        if lower and (late or expected[self.count] > interval):
            times = f"{expected[self.count]:.3g} s in {interval:.3g} s"
            cause = "frames came late" if late else times
            self.why = f"{self.count} frames are too slow: {cause}"
            self.count, self._tight = lower[-1], now
        elif late or not higher or expected[higher[0]] > MARGIN * interval:
            self._tight = now
        elif now - self._tight >= HOLD:
            times = f"{expected[higher[0]]:.3g} s in {interval:.3g} s"
            self.why = f"{higher[0]} frames fit again: {times}"
            self.count, self._tight = higher[0], now


class SteadyLabels:
    """Averages the probabilities of successive answers, and keeps the shown labels steady.

    The rule is that of docs/live.md, "Labels". With several labels per video, each class is shown
    or not: that changes if its average is more than the margin beyond 0.5.

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
        """Take account of an answer at a time of the stream; returns whether `shown` changes."""
        before, lead = self.shown, torch.zeros_like(probabilities)  # that a class must have
        if before is None:
            self.probabilities = probabilities.clone()
        else:
            weight = 1 - math.exp((self._time - time) / self._seconds) if self._seconds else 1.0
            self.probabilities = self.probabilities.lerp(probabilities, weight)
            lead[:] = self._margin
            lead[[*before]] = -self._margin
        self._time = time
        if self._multi_label:
            self.shown = tuple((self.probabilities > 0.5 + lead).nonzero().flatten().tolist())
        else:
            self.shown = (int((self.probabilities - lead / 2).argmax()),)
        return self.shown != before
