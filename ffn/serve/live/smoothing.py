"""Average the probabilities of live prediction, and keep the shown labels steady."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Smoothing:
    """How probabilities are averaged, and when the shown label changes.

    Args:
        seconds: Time constant of the average; 0: no average.
        margin: Of probabilities, by which another label must lead to be shown.

    Raises:
        ValueError: if a number is negative or not finite.
    """

    seconds: float = 1.0
    margin: float = 0.1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < math.inf:
                raise ValueError(f"smoothing: {name} is {value!r}; expected a number of 0 or more")


class SteadyLabels:
    """Averages the probabilities of successive answers, and keeps the shown labels steady.

    With p_n the probabilities of an answer, t_n its time and s the time constant,

        q_n = q_(n-1) + (1 - exp(-(t_n - t_(n-1)) / s)) (p_n - q_(n-1)),        q_1 = p_1.

    With one label per video, the shown label a changes to b = argmax q if q_b - q_a is at least the
    margin. With several labels per video, each class is shown or not: that changes if q is at least
    the margin beyond 0.5.

    Args:
        smoothing: The numbers.
        multi_label: Whether a video has any number of the classes.

    Attributes:
        probabilities: q (K,); None before the first answer.
        shown: Indices of the shown classes; None before the first answer.
    """

    def __init__(self, smoothing: Smoothing, *, multi_label: bool = False) -> None:
        self._smoothing, self._multi_label = smoothing, multi_label
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
            s, passed = self._smoothing.seconds, time - self._time
            weight = 1 - math.exp(-passed / s) if s else 1.0
            self.probabilities = self.probabilities.lerp(probabilities, weight)
        self._time, before = time, self.shown
        self.shown = self._several() if self._multi_label else self._one()
        return self.shown != before

    def _one(self) -> tuple[int, ...]:
        leader = int(self.probabilities.argmax())
        if self.shown is not None:
            lead = self.probabilities[leader] - self.probabilities[self.shown[0]]
            if lead < self._smoothing.margin:
                return self.shown
        return (leader,)

    def _several(self) -> tuple[int, ...]:
        margin = 0.0 if self.shown is None else self._smoothing.margin
        shown = set(self.shown or ())
        shown |= {*(self.probabilities >= 0.5 + margin).nonzero().flatten().tolist()}
        shown -= {*(self.probabilities <= 0.5 - margin).nonzero().flatten().tolist()}
        return tuple(sorted(shown))
