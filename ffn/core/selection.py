"""The rule that selects the sub-network for a number of frames (paper §3.4)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

Ranges = tuple[tuple[int, int], ...]


def nearest(frames: int, trained_frames: Iterable[int], ranges: Iterable = ()) -> int:
    """Return the trained frame count nearest to ``frames``; of two equally near ones, the larger.

    For (4, 8, 16): 5 frames give 4, 6 give 8, 12 give 16 and 40 give 16. A count with a range is as
    near as its range: with ranges ((2, 5), (6, 9), (10, 20)), 10 frames give 16.

    Raises:
        ValueError: ``frames`` is less than 1, or ``trained_frames`` or ``ranges`` is not valid.
    """
    if frames < 1:
        raise ValueError(f"the clip has {frames} frames; at least 1 is needed")
    counts = check_trained_frames(trained_frames)
    spans = dict(zip(counts, check_ranges(ranges, counts) or [(n, n) for n in counts], strict=True))
    distance = {n: max(low - frames, 0, frames - high) for n, (low, high) in spans.items()}
    return min(counts, key=lambda count: (distance[count], -count))


def check_trained_frames(trained_frames: Iterable[int]) -> tuple[int, ...]:
    """Return the counts in ascending order; raise ValueError unless distinct and positive."""
    counts = tuple(trained_frames)
    if not counts or any(not isinstance(c, int) or isinstance(c, bool) or c < 1 for c in counts):
        raise ValueError(
            f"trained_frames is {counts}; expected one or more positive integers, e.g. (4, 8, 16)"
        )
    if len(set(counts)) < len(counts):
        raise ValueError(f"trained_frames {counts} names a count twice")
    return tuple(sorted(counts))


def check_ranges(ranges: Iterable[Iterable[int]], counts: tuple[int, ...]) -> Ranges:
    """Return the first and the last count of each range; raise ValueError unless they are valid.

    Valid are no ranges, or one around each of the ascending counts, without a common count.
    """
    pairs = tuple(tuple(pair) for pair in ranges)
    valid = len(pairs) == len(counts) and all(
        len(pair) == 2 and {*map(type, pair)} == {int} and 1 <= pair[0] <= count <= pair[1]
        for count, pair in zip(counts, pairs, strict=True)
    )
    if pairs and not (valid and all(a[1] < b[0] for a, b in pairwise(pairs))):
        raise ValueError(
            f"ranges is {pairs} for the counts {counts}; expected the first and the last count of "
            "one range around each, without overlap, e.g. ((2, 5), (6, 11), (12, 20)) for 4, 8, 16"
        )
    return pairs
