"""Fit cascades to the predictions of a network for videos with labels.

The calibrations, the stages and their thresholds are fitted. The thresholds see probabilities out
of fold: of each video, by calibrations of other videos.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ffn.evaluation.cascades.calibration import Calibration, CrossFit, cross_fit
from ffn.evaluation.cascades.cascade import (
    Cascade,
    check_predictions,
    decoded,
    listed,
    raw_accuracy,
)
from ffn.evaluation.results import Predictions

STAGES = 3  # most stages of a cascade
COUNTS = 6  # most counts to choose stages from: 41 cascades
LEVELS = 48  # thresholds that are tried per stage


@dataclass(frozen=True)
class Point:
    """A cascade without its calibrations, and what it does on the videos of its fit.

    Attributes:
        stages: frame counts, ascending.
        thresholds: of all stages but the last.
        accuracy: in percent, out of fold.
        gmacs: giga multiply-accumulates of a video, in the mean.
    """

    stages: tuple[int, ...]
    thresholds: tuple[float, ...]
    accuracy: float
    gmacs: float


@dataclass(frozen=True)
class CascadeFit:
    """All good cascades of a network, from the predictions for videos with labels.

    Attributes:
        gmacs: of a video at each count.
        videos: number of videos of the fit.
        calibrations: by the counts whose logits they take.
        points: cascades, ascending in cost and accuracy; of the others, each has a cascade here
            that costs no more and is as accurate.
        raw: accuracy of each count without calibration, in percent, on the videos of the fit.
    """

    gmacs: dict[int, float]
    videos: int
    calibrations: dict[tuple[int, ...], Calibration]
    points: tuple[Point, ...]
    raw: dict[int, float]

    def for_accuracy(self, target: float | None = None) -> Point:
        """The cheapest cascade of at least this accuracy.

        Args:
            target: in percent; None for that of the largest count without calibration, or, if no
                cascade reaches it for less than that count costs, the most accurate one that costs
                no more.

        Raises:
            ValueError: no cascade reaches ``target``.
        """
        largest = max(self.raw)
        wanted = self.raw[largest] if target is None else target
        found = next((point for point in self.points if point.accuracy >= wanted), None)
        if target is None and (found is None or found.gmacs > self.gmacs[largest]):
            return self.within(self.gmacs[largest])
        if found is not None:
            return found
        best = self.points[-1]
        raise ValueError(
            f"no cascade reaches an accuracy of {wanted:.2f} % on the videos of the fit; the most "
            f"accurate has {best.accuracy:.2f} %. Ask for at most this, or give other counts"
        )

    def within(self, budget: float) -> Point:
        """The most accurate cascade of at most so many giga multiply-accumulates in the mean.

        Raises:
            ValueError: the cheapest cascade takes more.
        """
        found = [point for point in self.points if point.gmacs <= budget * (1 + 1e-9)]
        if not found:
            least = self.points[0].gmacs
            raise ValueError(
                f"the budget is {budget:g} GMACs; the cheapest cascade takes {least:.4g}. Give more"
            )
        return found[-1]

    def cascade(self, point: Point) -> Cascade:
        """The cascade of a point."""
        prefixes = (point.stages[: n + 1] for n in range(len(point.stages)))
        return Cascade(
            point.stages, point.thresholds, tuple(self.calibrations[stack] for stack in prefixes)
        )

    def fixed(self, count: int) -> Cascade:
        """A single count with its calibration."""
        return Cascade((count,), (), (self.calibrations[count,],))


def fit_cascades(
    predictions: Predictions, frames: Sequence[int], gmacs: Mapping[int, float]
) -> CascadeFit:
    """Fit calibrations, and find the best stages and thresholds for every accuracy and cost.

    Args:
        predictions: of the network for videos that it was not trained on.
        frames: counts to choose the stages from, at most `COUNTS`; a cascade has up to `STAGES`.
        gmacs: of a video at each of these counts.

    Raises:
        ValueError: as `check_predictions`; or too many counts, or too few videos.
    """
    counts = tuple(sorted({*frames}))
    check_predictions(predictions, counts)
    if len(counts) > COUNTS:
        raise ValueError(
            f"{len(counts)} counts to choose the stages from, {listed(counts)}; give at most "
            f"{COUNTS}"
        )
    seen = decoded(predictions)
    stacks = [
        stack
        for length in range(1, min(STAGES, len(counts)) + 1)
        for stack in itertools.combinations(counts, length)
    ]
    fits = {s: cross_fit([seen.logits[n] for n in s], seen.label) for s in stacks}
    points = [point for stack in stacks for point in _points(stack, fits, seen.label, gmacs)]
    return CascadeFit(
        {count: gmacs[count] for count in counts},
        len(seen.label),
        {stack: fit.calibration for stack, fit in fits.items()},
        tuple(_best(points)),
        {n: raw_accuracy(seen, n) for n in counts},
    )


def _points(
    stack: tuple[int, ...],
    fits: Mapping[tuple[int, ...], CrossFit],
    label: Tensor,
    gmacs: Mapping[int, float],
) -> list[Point]:
    """Cascades of the given stages, for a grid of thresholds."""
    found = [fits[stack[: n + 1]].probabilities for n in range(len(stack))]
    right = [(x.argmax(1) == label).double() for x in found]
    # From the last stage: accuracy and cost of a video (..., N) from a stage on.
    levels = torch.linspace(0, 1, LEVELS + 2, dtype=torch.float64)[1:-1]
    thresholds = [x.amax(1).quantile(levels).unique() for x in found[:-1]]
    stops = [
        (x.amax(1) >= grid[:, None]).double()  # (G, N)
        for x, grid in zip(found[:-1], thresholds, strict=True)
    ]
    score, cost = (
        right[-1][None],
        torch.full((1, len(label)), gmacs[stack[-1]], dtype=torch.float64),
    )
    grids = torch.empty(1, 0, dtype=torch.float64)  # of the stages behind, a row per cascade
    for n in range(len(stack) - 2, -1, -1):
        stop = stops[n][:, None]  # (G, 1, N)
        score = (stop * right[n] + (1 - stop) * score).flatten(0, 1)
        cost = (gmacs[stack[n]] + (1 - stop) * cost).flatten(0, 1)
        first = thresholds[n].repeat_interleave(len(grids))[:, None]
        grids = torch.cat([first, grids.repeat(len(thresholds[n]), 1)], 1)
    rows = zip(grids.tolist(), (100 * score.mean(1)).tolist(), cost.mean(1).tolist(), strict=True)
    return [Point(stack, tuple(grid), accuracy, mean) for grid, accuracy, mean in rows]


def _best(points: Sequence[Point]) -> list[Point]:
    """The points that no other one surpasses, by ascending cost."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.gmacs, -p.accuracy, len(p.stages))):
        if not kept or point.accuracy > kept[-1].accuracy:
            kept.append(point)
    return kept
