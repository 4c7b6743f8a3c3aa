"""Confidence intervals of means by the cluster bootstrap: whole groups of clips are resampled.

Clips of one person, scene or source video resemble each other. Intervals from resampled clips would
be too narrow; here each resample draws as many groups as there are, with replacement, with all
their clips (Davison and Hinkley 1997, section 3.8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
SEED = 0
LEVEL = 0.95
_ENTRIES = 2**24  # of the matrix of draws that is in memory at once


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval."""

    mean: float
    low: float
    high: float


def bootstrap_means(
    values: np.ndarray,
    groups: Sequence[str] | np.ndarray,
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    level: float = LEVEL,
) -> list[Interval]:
    """Means over clips, with percentile intervals from the bootstrap over groups.

    A resample with groups g_1 … g_G has the mean of all its clips, sum_j s(g_j) / sum_j n(g_j), for
    the sums s and numbers n of clips of the groups. The bounds are the quantiles (1 - level) / 2
    and (1 + level) / 2 of the means. Equal groups and seeds give the same resamples: for a paired
    comparison, pass the differences of two networks.

    Args:
        values: (N, M), M measures of each clip.
        groups: (N,), group of each clip.
        resamples: number of resamples.
        seed: of the draws.
        level: of the interval, between 0 and 1.

    Returns:
        M intervals.

    Raises:
        ValueError: there are fewer than two groups, or values that are not finite.
    """
    values = np.asarray(values, dtype=float)
    if not np.isfinite(values).all():
        raise ValueError("values are not finite; leave out the clips that have none")
    names, group = np.unique(np.asarray(groups), return_inverse=True)
    if len(names) < 2:
        raise ValueError(
            f"the clips have {len(names)} group; the spread between groups needs two or more"
        )
    sizes = np.bincount(group).astype(float)  # (G,)
    sums = np.stack([np.bincount(group, column) for column in values.T], 1)  # (G, M)

    generator = np.random.default_rng(seed)
    shares = np.full(len(names), 1 / len(names))
    means = []
    for first in range(0, resamples, step := max(1, _ENTRIES // len(names))):
        rows = min(step, resamples - first)
        draws = generator.multinomial(len(names), shares, rows)  # (rows, G)
        means.append(draws @ sums / (draws @ sizes)[:, None])  # (rows, M)
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return [Interval(*map(float, found)) for found in zip(values.mean(0), low, high, strict=True)]
