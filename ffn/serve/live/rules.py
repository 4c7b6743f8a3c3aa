"""Rules of live prediction: when an answer is due, of how many frames, and which label it shows."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ffn.serve.clips import UNREAD

Clock = Callable[[], float]
"""Gives seconds since an arbitrary moment."""

TOLERANCE = 1e-6  # seconds: rounding of times
EARLY = 0.25  # of the interval of frames, by which their times may be rounded
WEIGHT = 0.3  # of the newest answer in the load
MARGIN = 0.7  # share of the interval that an answer of a higher count may take
HOLD = 5.0  # seconds during which a higher count must fit before it is used


class Frame(NamedTuple):
    """A frame of a stream."""

    time: float  # in the stream, seconds after its first frame
    captured: float  # time of the clock, as far as it is known; of files, when the frame is due
    part: int = 0  # interruptions before it
    number: int = 0  # in the stream; dropped frames count
    stride: int = 1  # runs that it stands for
    pixels: Tensor = UNREAD  # uint8 RGB (C, H, W), after the preprocessing of the network


class Window:
    """The newest frames of a stream, without those before an interruption.

    The first answer is due when they cover so many seconds, the others at steps of the stream.
    """

    def __init__(self, seconds: float, step: float) -> None:
        self._seconds, self._step, self._due = seconds, step, 0.0
        self.frames: deque[Frame] = deque()
        self.is_due = True  # an answer, with the newest frame

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


class LoadControl:
    """Chooses the number of frames of the next answer, `count`: docs/live.md, "Load".

    Args:
        times: p(T): of an answer, by number of frames, in any unit.
    """

    def __init__(self, times: Mapping[int, float]) -> None:
        self._times, (*self._lower, self.count) = times, sorted(times)
        self._higher: list[int] = []
        self.why = "the largest count" if self._lower else ""
        self._load, self._tight = math.nan, 0.0  # f; when the next higher count did not fit

    def update(self, seconds: float, interval: float, now: float, *, late: bool = False) -> None:
        """Take account of an answer's time, the interval from one to the next, and late frames."""
        load = seconds / self._times[self.count]
        self._load = load if math.isnan(self._load) else self._load + WEIGHT * (load - self._load)
        late |= self._load * self._times[self.count] > interval
        if late and self._lower:
            self.why = f"{self.count} frames are too slow"
            self._higher.append(self.count)
            self.count, self._tight = self._lower.pop(), now
            return
        higher = [self._load * self._times[count] for count in self._higher[-1:]]
        if late or not higher or higher[0] > MARGIN * interval:
            self._tight = now
        elif now - self._tight >= HOLD:
            self.why = f"{self._higher[-1]} frames fit again"
            self._lower.append(self.count)
            self.count, self._tight = self._higher.pop(), now


class SteadyLabels:
    """Averages the probabilities of answers, and chooses the labels: docs/live.md, "Labels".

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
