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
from ffn.serve.clips import Part

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
    for name, value in budgets.items():
        if value is not None and not (isinstance(value, Real) and 0 < value < math.inf):
            raise ValueError(f"{name} is {value!r}; expected a number above 0")
    if frames is None or (isinstance(frames, str) and frames == "auto"):
        return
    if isinstance(frames, str) and frames == "early_exit":
        raise ValueError(
            'frames is "early_exit", which is for whole videos, predictor(video); windows and heat '
            'maps need a number, "auto" or a budget'
        )
    allowed = 'an integer of 1 or more, "auto" or "early_exit"'
    if not isinstance(frames, Integral):
        raise TypeError(f"frames is {frames!r}; expected {allowed}")
    if frames < 1:
        raise ValueError(f"frames is {frames}; expected {allowed}")
    if refusal := CLIP_FRAMES.refusal(int(frames)):
        raise ValueError(refusal)


@dataclass(frozen=True)
class Always:
    """Chooses the same number of frames for all videos, and says why."""

    count: int
    why: str

    def __call__(self, part: Part) -> tuple[int, str]:
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

    def __call__(self, part: Part) -> tuple[int, str]:
        """The number of frames, and why."""
        limits = {f"the {part.name} has {part.frames} frame{'s' * (part.frames != 1)}": part.frames}
        if part.seconds is not None:
            most = math.ceil(AUTO_FRAMES_PER_SECOND * part.seconds - 1e-6)
            limits[f"the {part.name} takes {part.seconds:.1f} s"] = most
        why, limit = min(limits.items(), key=lambda item: item[1])
        if limit >= self.counts[-1]:
            return self.counts[-1], "auto: the largest count"
        chosen = _largest(self.counts, limit, float)
        if chosen is None:
            return self.counts[0], f"auto: the smallest count; {why}"
        return chosen, f"auto: {why}"


class Budget:
    """Finds the largest count within a budget, for single clips of one network.

    Args:
        model: in eval mode.
        runner: runs the model.
        size: height and width of the clips, pixels.
        counts: allowed counts, ascending.
        trained: the counts whose latency is measured, besides the smallest and the largest.
        cache: folder of the file with latencies.
    """

    def __init__(
        self,
        model: nn.Module,
        runner: InferenceRunner,
        size: int,
        counts: Sequence[int],
        trained: Sequence[int],
        *,
        cache: Path,
    ) -> None:
        self._model, self._runner, self._size = model, runner, size
        self._counts, self._cache = counts, cache
        self._measured = sorted({*trained, *counts[:1], *counts[-1:]})
        self._on_meta: nn.Module | None = None
        self._macs: dict[int, float] = {}
        self._lock, self._measuring = threading.Lock(), threading.Lock()
        self._latencies: dict[int, float] | None = None

    def within_gmacs(self, limit: float) -> tuple[int, str]:
        """The largest count of at most ``limit`` giga multiply-accumulates, and why.

        Raises:
            ValueError: if the smallest count takes more.
        """
        return self._within(limit, "gmacs", "GMACs", self.gmacs)

    def within_ms(self, limit: float) -> tuple[int, str]:
        """The largest count whose forward pass takes at most ``limit`` milliseconds, and why.

        Raises:
            ValueError: if the smallest count takes more.
        """
        latencies = self.latencies()
        known = sorted(latencies)
        times = np.maximum.accumulate([latencies[count] for count in known])  # against noise

        def ms(count: int) -> float:
            return float(np.interp(count, known, times))

        chosen, why = self._within(limit, "ms", "ms", ms)
        return chosen, f"{why}, {'measured' if chosen in latencies else 'between measured counts'}"

    def _within(
        self, limit: float, name: str, unit: str, cost: Callable[[int], float]
    ) -> tuple[int, str]:
        chosen = _largest(self._counts, limit, cost)
        if chosen is None:
            least = f"{self._counts[0]} frames, takes {cost(self._counts[0]):.4g} {unit}"
            raise ValueError(f"budget_{name} is {limit:g}; the smallest count, {least}. Give more")
        return chosen, f"within {limit:g} {unit}: {cost(chosen):.4g} {unit}"

    def gmacs(self, count: int) -> float:
        """Giga multiply-accumulates of a clip of ``count`` frames."""
        with self._lock:  # two counts at once in one network would be added
            if count not in self._macs:
                if self._on_meta is None:
                    self._on_meta = copy.deepcopy(self._model).to("meta")
                clip = torch.zeros(1, 3, count, self._size, self._size, device="meta")
                self._macs[count] = sum(count_macs(self._on_meta, clip).values()) / 1e9
            return self._macs[count]

    def latencies(self) -> dict[int, float]:
        """Milliseconds of a forward pass at each trained count, measured or from the file."""
        with self._measuring:  # two measurements at once would disturb each other
            if self._latencies is None:
                self._latencies = self._measure()
            return self._latencies

    def _measure(self) -> dict[int, float]:
        counts, size, run = self._measured, self._size, self._runner
        clips = {n: torch.zeros(1, 3, n, size, size, device=run.device) for n in counts}
        with torch.inference_mode():
            run(clips[counts[0]])  # chooses the precision, which is part of the key
        key = f"{run.describe()}, {size} px, {', '.join(map(str, counts))} frames"

        def measure() -> dict[str, float]:
            given = {"model": self._model, "repeats": 10, "seconds": 1.0}
            return {str(n): measure_latency(run, clip, **given) for n, clip in clips.items()}

        found = measured_once(self._cache / FILE, key, measure)
        return {int(count): ms for count, ms in found.items()}


def _largest(counts: Sequence[int], limit: float, cost: Callable[[int], float]) -> int | None:
    """The largest count whose cost is at most ``limit``, for a cost that grows; None: no count."""
    place = bisect_right(counts, limit, key=cost)
    return counts[place - 1] if place else None
