"""A network without weights for tests of live prediction; its answers take simulated time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace

import numpy as np
from serve_files import answer
from simulated_clock import SimulatedClock

from ffn.data import Preprocessing
from ffn.serve import Prediction
from ffn.serve.choose_frames import Always
from ffn.serve.clips import Clip, ClipReader


class Network:
    """Takes the place of a predictor.

    The probability of the first class is the mean brightness of the clip.

    Args:
        clock: that goes on while it works.
        seconds: of an answer, by number of frames and time.
        counts: that it offers.
    """

    preprocessing = Preprocessing(crop=2, resize=2)
    record = SimpleNamespace(multi_label=False)
    classes = ("bright", "dark")
    is_causal = False

    def __init__(
        self,
        clock: SimulatedClock,
        seconds: Callable[[int, float], float] = lambda count, now: 0.0,
        counts: Sequence[int] = (4, 8, 16),
    ) -> None:
        self.counts = list(counts)
        self._clock, self._seconds, self._built = clock, seconds, set()

    def reader(self, frames: int) -> ClipReader:
        return ClipReader(self.preprocessing, "", Always(frames, ""))

    def latencies(self) -> dict[int, float]:
        return {count: 1000 * self._seconds(count, 0.0) or 1.0 for count in self.counts}

    def warm_up(self, counts: Iterable[int]) -> None:
        self._built.update(counts)

    def predict(self, clips: Sequence[Clip]) -> list[Prediction]:
        (clip,) = clips
        count = clip.pixels.shape[1]
        seconds = self._seconds(count, self._clock.now())
        self._clock.spend(seconds if count in self._built else 9.0)
        bright = float(clip.pixels.float().mean()) / 255
        kept = {key: getattr(clip, key) for key in ("why", "indices")}
        found = (bright, 1 - bright)
        return [answer(found, self.classes, path=clip.name, frames=count, active=count, **kept)]


def camera(clock: SimulatedClock, seconds: float) -> Iterator[tuple[float, np.ndarray]]:
    """Five frames per second, one after another as the time goes on."""
    for number in range(round(5 * seconds)):
        clock.spend(0.2)
        yield number / 5, np.full((2, 2, 3), min(255, number // 5), np.uint8)
