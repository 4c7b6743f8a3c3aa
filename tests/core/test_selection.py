"""The nearest rule, against the paper's table and a linear search."""

from __future__ import annotations

import itertools
import random

import pytest

from ffn.core import frame_ranges, nearest

TABLE = {4: range(1, 6), 8: range(6, 12), 16: range(12, 65)}


def test_paper_table() -> None:
    for expected, counts in TABLE.items():
        assert {nearest(frames, (4, 8, 16)) for frames in counts} == {expected}


def test_any_set_by_search() -> None:
    rng = random.Random(0)
    for _ in range(200):
        trained = rng.sample(range(1, 65), rng.randint(1, 6))  # in no order
        for frames in range(1, 80):
            expected = None
            for distance, sign in itertools.product(range(100), (1, -1)):
                if frames + sign * distance in trained:
                    expected = frames + sign * distance
                    break
            assert nearest(frames, trained) == expected, (frames, trained)


def test_what_is_no_count() -> None:
    for frames in (0, -1):
        with pytest.raises(ValueError, match=f"the clip has {frames} frames; at least 1"):
            nearest(frames, (4, 8))
    ranges = (
        {4: (2, 6), 8: (6, 11)},  # overlap
        {4: (5, 6)},  # without its count
        {4: (4,), 8: (7, 8, 9)},
        {4: (0, 5)},
        {4: (2.0, 5)},
    )
    for trained in ((), (0,), (-4, 8), (4.0, 8), ("4",), (True, 8), (4, None), (4, 8, 4), *ranges):
        for call in (frame_ranges, lambda counts: nearest(4, counts)):
            with pytest.raises(ValueError, match="expected different positive integers"):
                call(trained)


def test_ranges_by_search() -> None:
    """The owner of the range with frames, else of the closest range, the larger at a tie."""
    rng = random.Random(1)
    for _ in range(200):
        ends = sorted(rng.sample(range(1, 40), 2 * rng.randint(1, 4)))
        ranges = {rng.randint(a, b): (a, b) for a, b in zip(ends[::2], ends[1::2], strict=True)}
        owner = {n: count for count, (a, b) in ranges.items() for n in range(a, b + 1)}
        for frames in range(1, 60):
            around = itertools.chain.from_iterable((frames + d, frames - d) for d in range(60))
            expected = next(owner[n] for n in around if n in owner)
            assert nearest(frames, ranges) == expected, (frames, ranges)


def test_ranges_come_back_ascending_and_counts_are_their_own_range() -> None:
    assert list(frame_ranges({8: [6, 11], 4: [2, 5]}).items()) == [(4, (2, 5)), (8, (6, 11))]
    assert frame_ranges(iter([8, 4])) == {4: (4, 4), 8: (8, 8)}
