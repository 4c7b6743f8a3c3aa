"""Choose the number of frames of live prediction by the time that answers take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

HANDFUL = 5  # counts that the control chooses from
WEIGHT = 0.3  # of the newest measurement in the load factor
MARGIN = 0.7  # share of the interval that an answer of a higher count may take
HOLD = 5.0  # seconds during which a higher count must fit before it is used


def handful(counts: Sequence[int], most: int = HANDFUL) -> list[int]:
    """At most ``most`` of the counts, ascending: the ends, and those nearest to equal ratios.

    >>> handful([4, 8, 16]), handful(range(2, 21))
    ([4, 8, 16], [2, 4, 6, 11, 20])
    """
    counts = sorted(counts)
    if len(counts) <= most:
        return counts
    ratio = (counts[-1] / counts[0]) ** (1 / (most - 1))
    wanted = [counts[0] * ratio**n for n in range(most)]
    return sorted({min(counts, key=lambda count: abs(count - each)) for each in wanted})


class LoadControl:
    """Chooses the largest number of frames whose answers are ready before the next one is due.

    With p(T) the time of an answer with T frames on the idle machine and d the time of the newest
    answer, the load factor is

        f <- f + 0.3 (d / p(T) - f),        f = 1 at the start,

    and f p(T') is the expected time with T' frames. With I the time until the next answer is due:

    - The next lower count is used if f p(T) > I, or if frames came late.
    - The next higher count T' is used if f p(T') <= 0.7 I at all answers of the last 5 s.

    Args:
        seconds: p(T) by count T.
        why: The reason to give while the largest count is used.
    """

    def __init__(self, seconds: Mapping[int, float], why: str = "the largest count") -> None:
        self._seconds = {count: max(seconds[count], 1e-9) for count in sorted(seconds)}
        self._counts = list(self._seconds)
        self._place = len(self._counts) - 1
        self._largest = self.why = why
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
            self._place, self._fits_since = self._place - 1, math.inf
        elif self._place + 1 < len(self._counts):
            self._raise_if_it_fits(late, interval, now)

    def _raise_if_it_fits(self, late: bool, interval: float, now: float) -> None:
        following = self._counts[self._place + 1]
        expected = self._factor * self._seconds[following]
        fits = not late and expected <= MARGIN * interval
        self._fits_since = min(self._fits_since, now) if fits else math.inf
        if now - self._fits_since >= HOLD:
            self._place, self._fits_since = self._place + 1, math.inf
            self.why = f"{following} frames fit again: {_ms(expected)} in {_ms(interval)}"
            if self._place + 1 == len(self._counts):
                self.why = self._largest


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if math.isfinite(seconds) else "any time"
