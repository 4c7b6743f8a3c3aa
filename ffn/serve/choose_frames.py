"""The number of frames for a clip: by its duration, or by a budget of time or arithmetic."""

from __future__ import annotations

import copy
import math
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ffn.evaluation import count_macs, measure_latency
from ffn.export.runner import InferenceRunner, measured_once
from ffn.limits import CLIP_FRAMES

AUTO_FRAMES_PER_SECOND = 8.0
FILE = "latencies.json"  # in FFN_HOME


def check_choice(
    frames: int | str | None, budget_ms: float | None, budget_gmacs: float | None
) -> None:
    """Check the arguments that choose a number of frames.

    Raises:
        ValueError: there are several, or one is out of its range.
        TypeError: ``frames`` is neither an integer nor "auto".
    """
    budgets = {"budget_ms": budget_ms, "budget_gmacs": budget_gmacs}
    given = {k: v for k, v in {"frames": frames, **budgets}.items() if v is not None}
    if len(given) > 1:
        shown = " and ".join(f"{key}={value!r}" for key, value in given.items())
        raise ValueError(f"got {shown}; give one of frames, budget_ms and budget_gmacs")
    for name, value in given.items():
        if name != "frames" and not (isinstance(value, Real) and 0 < value < math.inf):
            raise ValueError(f"{name} is {value!r}; expected a number above 0")
    if frames is None or (isinstance(frames, str) and frames == "auto"):
        return
    allowed = 'an integer of 1 or more, "auto", or for whole videos "early_exit"'
    if not isinstance(frames, Integral):
        wrong = ValueError if isinstance(frames, str) and frames == "early_exit" else TypeError
        raise wrong(f"frames is {frames!r}; expected {allowed}")
    if frames < 1:
        raise ValueError(f"frames is {frames}; expected {allowed}")
    if refusal := CLIP_FRAMES.refusal(int(frames)):
        raise ValueError(refusal)


@dataclass(frozen=True)
class Always:
    """Chooses the same number of frames for all videos, and says why."""

    count: int
    why: str

    def __call__(self, frames: int, seconds: float | None) -> tuple[int, str]:
        """The number of frames, and why."""
        return self.count, self.why


@dataclass(frozen=True)
class ByDuration:
    """Chooses the count for ``frames="auto"``.

    It is the largest count that does not repeat frames and takes at most `AUTO_FRAMES_PER_SECOND`
    times the seconds, rounded up; for shorter videos, the smallest count.

    Attributes:
        counts: allowed counts, ascending.
    """

    counts: tuple[int, ...]

    def __call__(self, frames: int, seconds: float | None) -> tuple[int, str]:
        """The number of frames, and why."""
        most, why = frames, f"auto: of {frames}"
        if seconds is not None:
            most = min(most, math.ceil(AUTO_FRAMES_PER_SECOND * seconds - 1e-6))
            why += f" in {seconds:.1f} s"
        return _largest(self.counts, most, float) or self.counts[0], why


@dataclass
class Budget:
    """Finds the largest of the counts within a budget, for single clips of one network.

    ValueError says that the smallest count takes more. The latency of the trained counts, of the
    smallest and of the largest is measured; a file in the folder ``cache`` keeps it.
    """

    model: nn.Module
    runner: InferenceRunner
    size: int
    counts: Sequence[int]
    trained: Sequence[int]
    cache: Path

    def __post_init__(self) -> None:
        self._macs: dict[int, float] = {}
        self._latencies: dict[int, float] = {}
        self._lock = threading.Lock()

    def within_gmacs(self, limit: float) -> Always:
        """The largest count of at most ``limit`` giga multiply-accumulates."""
        return self._within(limit, "gmacs", "GMACs", self.gmacs)

    def within_ms(self, limit: float) -> Always:
        """The largest count whose forward pass takes at most ``limit`` milliseconds.

        Times between the measured counts are interpolated.
        """
        known, times = zip(*sorted(self.latencies().items()), strict=True)
        times = np.maximum.accumulate(times)  # against noise
        return self._within(limit, "ms", "ms", lambda count: float(np.interp(count, known, times)))

    def _within(self, limit: float, name: str, unit: str, cost: Callable[[int], float]) -> Always:
        chosen = _largest(self.counts, limit, cost)
        if chosen is None:
            least = f"{self.counts[0]} frames, takes {cost(self.counts[0]):.4g} {unit}"
            raise ValueError(f"budget_{name} is {limit:g}; the smallest count, {least}. Give more")
        return Always(chosen, f"within {limit:g} {unit}: {cost(chosen):.4g} {unit}")

    def gmacs(self, count: int) -> float:
        """Giga multiply-accumulates of a clip of ``count`` frames."""
        with self._lock:  # two counts at once in one network would be added
            if count not in self._macs:
                tensors = [*self.model.parameters(), *self.model.buffers()]
                empty = {id(t): torch.empty_like(t, device="meta") for t in tensors}
                model = copy.deepcopy(self.model, empty)
                clip = torch.zeros(1, 3, count, self.size, self.size, device="meta")
                self._macs[count] = count_macs(model, clip) / 1e9
            return self._macs[count]

    def latencies(self) -> dict[int, float]:
        """See :meth:`ffn.serve.Predictor.latencies`."""
        with self._lock:  # two measurements at once would disturb each other
            self._latencies = self._latencies or self._measure()
            return self._latencies

    def _measure(self) -> dict[int, float]:
        counts = sorted({*self.trained, *self.counts[:1], *self.counts[-1:]})
        size, run = self.size, self.runner
        clips = {n: torch.zeros(1, 3, n, size, size, device=run.device) for n in counts}
        with torch.inference_mode():
            run(clips[counts[0]])  # chooses the precision, which is part of the key
        key = f"{run.describe()}, {size} px, {', '.join(map(str, counts))} frames"

        def measure() -> dict[str, float]:
            given = {"model": self.model, "repeats": 10, "seconds": 1.0}
            return {str(n): measure_latency(run, clip, **given) for n, clip in clips.items()}

        found = measured_once(self.cache / FILE, key, measure)
        return {int(count): ms for count, ms in found.items()}


def _largest(counts: Sequence[int], limit: float, cost: Callable[[int], float]) -> int | None:
    """The largest count whose cost is at most ``limit``, for a cost that grows; None: no count."""
    place = bisect_right(counts, limit, key=cost)
    return counts[place - 1] if place else None
