"""Test cascades on other videos than those of their fit, against fixed counts and oracles."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from ffn.evaluation.cascades.cascade import (
    Cascade,
    check_predictions,
    decoded,
    mean_cost,
    raw_accuracy,
    select,
)
from ffn.evaluation.cascades.fit import CascadeFit, Point, fit_cascades
from ffn.evaluation.results import Predictions

CURVE = 25  # budgets of the curve of a report

Choose = Callable[[CascadeFit], Point]
Trial = dict[str, Any]  # see `trial`


def trial(
    fit: CascadeFit,
    chosen: Point,
    predictions: Predictions,
    gmacs: Mapping[int, float],
    choose_fixed: Callable[[float], int] | None = None,
    latencies: Mapping[int, float] | None = None,
) -> Trial:
    """Test a fitted cascade on other videos.

    Args:
        fit: calibrations and cascades.
        chosen: the cascade to test.
        predictions: for other videos.
        gmacs: of a video at each count that may be compared.
        choose_fixed: gives the best single count within a budget, chosen on the videos of the fit;
            None: the largest count of the fit within the budget.
        latencies: milliseconds of a video at each count that may be compared, if they are known.

    Returns:
        Plain values. ``cascade``: the chosen one. ``fixed``: each count, ``raw`` and, for the
        counts of the fit, ``calibrated``. ``oracles``: see `oracles`. ``budgets``: accuracy
        of the best single count and of the best cascade within the cost of each count. ``curve``:
        that of the cascades at evenly spaced budgets. All of them have their cost in ``gmacs`` and,
        with ``latencies``, in ``ms``.

    Raises:
        ValueError: as `check_predictions`.
    """
    check_predictions(predictions, list(fit.gmacs))
    largest = max(fit.gmacs)
    counts = sorted(n for n in gmacs if n in predictions.logits and n <= largest)
    costs = {"gmacs": gmacs} | ({"ms": latencies} if latencies else {})
    fixed = {
        count: {name: cost[count] for name, cost in costs.items()} | _fixed(fit, predictions, count)
        for count in counts
    }
    cascade, found = fit.cascade(chosen), fit.cascade(chosen).measure(predictions, gmacs)
    least, most = min(fit.gmacs.values()), fit.gmacs[largest]

    def at(budget: float) -> dict[str, Any]:
        point = fit.within(budget)
        measured = fit.cascade(point).measure(predictions, gmacs)
        paid = {n: mean_cost(point.stages, measured.shares, cost) for n, cost in costs.items()}
        return {"stages": point.stages, "accuracy": measured.accuracy, **paid}

    budgets = []
    for count in counts:
        if gmacs[count] < least:
            continue
        inside = max(n for n in fit.gmacs if gmacs[n] <= gmacs[count])
        best = choose_fixed(gmacs[count]) if choose_fixed else inside
        single = {"frames": best, "accuracy": fixed[best]["raw"]}
        single |= {name: cost[best] for name, cost in costs.items()}
        budgets.append({"budget": gmacs[count], "fixed": single, "cascade": at(gmacs[count])})
    even = [least * (most / least) ** (n / (CURVE - 1)) for n in range(CURVE)]
    return {
        "cascade": {
            "stages": chosen.stages,
            "thresholds": chosen.thresholds,
            "penalties": tuple(str(c.penalty) for c in cascade.calibrations),
            "expected_accuracy": chosen.accuracy,
            "expected_gmacs": chosen.gmacs,
            **asdict(found),
            **{n: mean_cost(chosen.stages, found.shares, cost) for n, cost in costs.items()},
            "saved": 100 * (1 - found.gmacs / most),
        },
        "fixed": fixed,
        "oracles": oracles(cascade, predictions, costs, fixed[largest]["raw"]),
        "budgets": budgets,
        "curve": [{"budget": budget, **at(budget)} for budget in even],
        "videos": len(predictions.label),
        "fit_videos": fit.videos,
    }


def half_trials(
    predictions: Predictions,
    frames: Sequence[int],
    gmacs: Mapping[int, float],
    choose: Choose,
    latencies: Mapping[int, float] | None = None,
) -> list[Trial]:
    """Fit on a random half of the videos and test on the other, both ways.

    Args:
        predictions: of a network.
        frames: counts to choose the stages from.
        gmacs: of a video at each count.
        choose: gives the cascade of a fit.
        latencies: milliseconds of a video at each count, if they are known.

    Raises:
        ValueError: as :func:`fit_cascades`, or as ``choose``.
    """
    check_predictions(predictions, frames)
    videos = len(predictions.label)
    first = torch.randperm(videos, generator=torch.Generator().manual_seed(0)) < videos // 2
    trials = []
    for own in (first, ~first):
        seen, other = select(predictions, own), select(predictions, ~own)
        fit = fit_cascades(seen, frames, gmacs)
        raw = {n: raw_accuracy(seen, n) for n in gmacs if n in seen.logits and n <= max(frames)}

        def best(budget: float, raw: dict[int, float] = raw) -> int:
            return max((n for n in raw if gmacs[n] <= budget), key=lambda n: (raw[n], -n))

        trials.append(trial(fit, choose(fit), other, gmacs, best, latencies))
    return trials


def oracles(
    cascade: Cascade,
    predictions: Predictions,
    costs: Mapping[str, Mapping[int, float]],
    target: float,
) -> dict[str, dict[str, float]]:
    """Rules that know the labels, with the stages and calibrations of a cascade.

    Args:
        cascade: its thresholds do not matter.
        predictions: for videos with labels.
        costs: of a video at each count, by the name of the cost.
        target: accuracy in percent.

    Returns:
        Accuracy and costs of ``stops_when_right``, which goes on until the answer is right or the
        stages end: a confidence that tells right from wrong without error. And of ``least_cost``,
        which also knows whether going on helps, and reaches the target, or else the largest
        accuracy: no rule that stops at one of these stages is as accurate for less.
    """
    seen = decoded(predictions)
    given = [seen.logits[count] for count in cascade.stages]
    answers = [cascade.probabilities(given[: n + 1]).argmax(1) for n in range(len(given))]
    right = torch.stack([answer == seen.label for answer in answers])  # (n, N)
    any_right, first = right.any(0), right.int().argmax(0)
    until = first.where(any_right, len(given) - 1)  # (N,), index of the last stage
    videos = len(predictions.label)
    # 100 * k / N * N / 100 may be above k, by rounding.
    needed = min(int(any_right.sum()), math.ceil(target * videos / 100 - 1e-6))
    least = torch.zeros_like(first)
    least[: int(any_right.sum())] = first[any_right].sort().values  # the order does not matter
    least[needed:] = 0

    def paid(stage: Tensor) -> dict[str, float]:
        totals = {
            name: list(itertools.accumulate(cost[count] for count in cascade.stages))
            for name, cost in costs.items()
        }
        return {
            name: float(torch.tensor(total, dtype=torch.float64)[stage].mean())
            for name, total in totals.items()
        }

    return {
        "stops_when_right": {"accuracy": 100 * int(any_right.sum()) / videos, **paid(until)},
        "least_cost": {"accuracy": 100 * needed / videos, **paid(least)},
    }


def mean_trial(trials: Sequence[Trial]) -> Trial:
    """The mean of trials: floats are averaged, other values are lists of those that occur.

    Args:
        trials: of the same counts; also means of others.
    """
    return _mean(trials)


def spread(values: Sequence[float]) -> float | None:
    """Standard deviation; None of one value."""
    return statistics.stdev(values) if len(values) > 1 else None


def _fixed(fit: CascadeFit, predictions: Predictions, count: int) -> dict[str, float]:
    found = {"raw": raw_accuracy(predictions, count)}
    if count in fit.gmacs:
        found["calibrated"] = fit.fixed(count).measure(predictions, fit.gmacs).accuracy
    return found


def _mean(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {key: _mean([value[key] for value in values]) for key in first}
    if isinstance(first, list) and isinstance(first[0], dict):
        return [_mean(same) for same in zip(*values, strict=True)]
    if isinstance(first, float):
        return statistics.mean(values)
    lists = [value if isinstance(value, list) else [value] for value in values]
    return list(dict.fromkeys(itertools.chain(*lists)))
