"""Cluster bootstrap against enumeration by hand, the normal approximation and SciPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ffn.evaluation.bootstrap import Interval, bootstrap_means


def test_two_groups_by_hand() -> None:
    """The resamples are aa (1 in 4): 0, ab (1 in 2): 3 of 4 clips, bb (1 in 4): 1."""
    values, groups = [[0.0], [1.0], [1.0], [1.0]], ["a", "b", "b", "b"]

    assert bootstrap_means(values, groups) == [Interval(0.75, 0.0, 1.0)]
    assert bootstrap_means(values, groups, level=0.4) == [Interval(0.75, 0.75, 0.75)]


def test_bounds_are_the_quantiles_of_all_resamples() -> None:
    """Five groups have 5^5 equally likely resamples."""
    sizes, sums = np.array([1, 2, 3, 4, 7]), np.array([1.0, 0.5, 2.0, 0.0, 6.5])
    groups = np.repeat([3, 0, 4, 1, 2], sizes)
    values = np.repeat(sums / sizes, sizes)[:, None]
    every = [list(drawn) for drawn in itertools.product(range(5), repeat=5)]
    means = [sums[drawn].sum() / sizes[drawn].sum() for drawn in every]

    (found,) = bootstrap_means(values, groups, resamples=40_000)

    assert found.mean == pytest.approx(10 / 17)
    assert [found.low, found.high] == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.01)


def test_equal_groups_have_no_width() -> None:
    values = np.tile([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], (6, 1))

    found = bootstrap_means(values, np.repeat(np.arange(6), 3))

    assert [one.mean for one in found] == pytest.approx([2 / 3, 1 / 3])
    for one in found:
        assert [one.low, one.high] == pytest.approx([one.mean] * 2)


def test_single_clips_have_the_binomial_interval() -> None:
    share, clips = 0.3, 600
    values = (np.arange(clips) < share * clips)[:, None]

    (found,) = bootstrap_means(values, np.arange(clips))

    half = 1.96 * (share * (1 - share) / clips) ** 0.5
    assert [found.low, found.high] == pytest.approx([share - half, share + half], abs=0.003)


def test_groups_widen_the_interval() -> None:
    """Of 100 groups of 4 equal clips, the interval is that of 100 clips."""
    values = np.repeat(np.arange(100) < 40, 4)[:, None]

    (grouped,) = bootstrap_means(values, np.repeat(np.arange(100), 4))
    (single,) = bootstrap_means(values, np.arange(400))

    assert grouped.high - grouped.low == pytest.approx(2 * (single.high - single.low), rel=0.1)


def test_agrees_with_scipy() -> None:
    from scipy.stats import bootstrap

    draws = np.random.default_rng(1)
    sizes = draws.integers(1, 9, 40)
    values = draws.random(sizes.sum()) < np.repeat(draws.random(40), sizes)
    groups = np.repeat(np.arange(40), sizes)
    sums = np.bincount(groups, values)

    expected = bootstrap(
        (sums, sizes),
        lambda total, number, axis: total.sum(axis) / number.sum(axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=10_000,
        rng=np.random.default_rng(2),
    ).confidence_interval
    (found,) = bootstrap_means(values[:, None], groups)

    assert [found.low, found.high] == pytest.approx([expected.low, expected.high], abs=0.01)


def test_measures_share_their_resamples() -> None:
    """The difference of two measures that differ by a constant has no width."""
    first = np.random.default_rng(0).random((50, 1))
    groups = np.arange(50) % 20

    both = bootstrap_means(np.hstack([first, first + 0.25]), groups)
    alone = bootstrap_means(first + 0.25, groups)
    (difference,) = bootstrap_means(first + 0.25 - first, groups)

    assert both[1].low - both[0].low == pytest.approx(0.25)
    assert both[1].high == pytest.approx(alone[0].high)
    assert [difference.low, difference.high] == pytest.approx([0.25, 0.25])


def test_resamples_in_parts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values, groups = np.random.default_rng(0).random((30, 2)), np.arange(30) % 10
    whole = bootstrap_means(values, groups, resamples=1000)

    monkeypatch.setattr("ffn.evaluation.bootstrap._ENTRIES", 70)

    assert bootstrap_means(values, groups, resamples=1000) == whole


def test_refuses_one_group_and_missing_values() -> None:
    with pytest.raises(ValueError, match="1 group; the spread between groups needs two"):
        bootstrap_means(np.ones((3, 1)), ["a"] * 3)
    with pytest.raises(ValueError, match="not finite"):
        bootstrap_means(np.array([[1.0], [np.nan]]), ["a", "b"])
