"""Smoothed probabilities and steady labels of live prediction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Smoothing:
    """How probabilities are averaged, and when the shown label changes.

    Args:
        seconds: time constant of the average; 0: no average.
        margin: of probabilities, by which another label must lead to be shown at once.
        dwell: seconds during which another label must lead to be shown with a smaller margin.

    Raises:
        ValueError: if a number is negative or not finite.
    """

    seconds: float = 1.0
    margin: float = 0.1
    dwell: float = 1.0

    def __post_init__(self) -> None:
        for name in ("seconds", "margin", "dwell"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ValueError(f"smoothing: {name} is {value!r}; expected a number of 0 or more")


class SteadyLabels:
    """Averages the probabilities of successive answers, and keeps the shown labels steady.

    With p_n the probabilities of an answer, t_n its time and s the time constant,

        q_n = q_(n-1) + (1 - exp(-(t_n - t_(n-1)) / s)) (p_n - q_(n-1)),        q_1 = p_1.

    With one label per video, the shown label a changes to b = argmax q if q_b - q_a is at least the
    margin, or if a label other than a has led for the dwell time. With several labels per video,
    each class is shown or not: that changes if q is at least the margin beyond 0.5, or beyond 0.5
    for the dwell time.

    Args:
        smoothing: the numbers.
        multi_label: whether a video has any number of the classes.
    """

    def __init__(self, smoothing: Smoothing, *, multi_label: bool = False) -> None:
        self._smoothing = smoothing
        self._choose: Callable[[Tensor, float], tuple[int, ...]]
        self._choose = self._several if multi_label else self._one
        self._time = 0.0
        self._since: dict[int, float] = {}  # class -> when it began to differ from what is shown
        self.probabilities: Tensor | None = None
        self.shown: tuple[int, ...] | None = None

    def update(self, probabilities: Tensor, time: float) -> bool:
        """Take account of an answer; returns whether the shown labels change.

        Args:
            probabilities: (K,).
            time: of the answer in the stream, in seconds; ascending.
        """
        if self.probabilities is None:
            self.probabilities = probabilities.clone()
        else:
            weight = self._weight(time - self._time)
            self.probabilities = self.probabilities.lerp(probabilities, weight)
        self._time = time
        before, self.shown = self.shown, self._choose(self.probabilities, time)
        return self.shown != before

    def _weight(self, passed: float) -> float:
        seconds = self._smoothing.seconds
        return 1 - math.exp(-passed / seconds) if seconds else 1.0

    def _one(self, probabilities: Tensor, time: float) -> tuple[int, ...]:
        leader = int(probabilities.argmax())
        if self.shown is None or leader == self.shown[0]:
            self._since.clear()
            return (leader,)
        key = self.shown[0]
        lead = float(probabilities[leader] - probabilities[key])
        if not self._changes(key, lead, time):
            return self.shown
        self._since.clear()
        return (leader,)

    def _several(self, probabilities: Tensor, time: float) -> tuple[int, ...]:
        if self.shown is None:
            return tuple((probabilities >= 0.5).nonzero().flatten().tolist())
        shown = set(self.shown)
        for k, probability in enumerate(probabilities.tolist()):
            if (probability >= 0.5) == (k in shown):
                self._since.pop(k, None)
            elif self._changes(k, abs(probability - 0.5), time):
                del self._since[k]
                shown ^= {k}
        return tuple(sorted(shown))

    def _changes(self, key: int, lead: float, time: float) -> bool:
        """Whether what is shown changes, by the lead of something else."""
        since = self._since.setdefault(key, time)
        return lead >= self._smoothing.margin or time - since >= self._smoothing.dwell
