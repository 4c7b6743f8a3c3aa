"""Trained frame counts, their ranges, and the count whose sub-network runs a clip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

WINDOW = 64  # frames that a dense clip spans (the stride of TSM is 64 / T)


def nearest(frames: int, trained_frames: Iterable[int]) -> int:
    """Return the trained frame count nearest to ``frames``; of two equally near ones, the larger.

    For (4, 8, 16): 5 frames give 4, 6 give 8, 12 give 16 and 40 give 16. A count with a range is as
    near as its range: for {4: (2, 5), 8: (6, 9), 16: (10, 20)}, 10 frames give 16.

    Raises ValueError if ``frames`` is less than 1, or ``trained_frames`` is not valid.
    """
    if frames < 1:
        raise ValueError(f"the clip has {frames} frames; at least 1 is needed")
    ranges = frame_ranges(trained_frames)
    for count, following in pairwise(ranges):  # comparisons only, for torch.compile
        if 2 * frames < ranges[count][1] + ranges[following][0]:
            return count
    return max(ranges)


def frame_ranges(trained_frames: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return each trained count with its range, ascending; (4, 8) gives {4: (4, 4), 8: (8, 8)}.

    Raises ValueError unless they are different positive integers, in ranges that do not overlap.
    """
    counts = trained_frames if isinstance(trained_frames, Mapping) else tuple(trained_frames)
    ranges = {n: tuple(counts[n]) if isinstance(counts, Mapping) else (n, n) for n in counts}
    whole = all(type(m) is int and m > 0 for n, ends in ranges.items() for m in (n, *ends))
    if whole and 0 < len(ranges) == len(counts) and {*map(len, ranges.values())} == {2}:
        ranges = dict(sorted(ranges.items()))
        apart = all(left[1] < right[0] for left, right in pairwise(ranges.values()))
        if apart and all(low <= n <= high for n, (low, high) in ranges.items()):
            return ranges
    allowed = "positive integers, e.g. (4, 8, 16), or separate ranges, e.g. {4: (2, 5), 8: (6, 11)}"
    raise ValueError(f"trained_frames is {counts}; expected different {allowed}")


def all_trained_frames(trained_frames: Iterable[int]) -> tuple[int, ...]:
    """Return all counts of the ranges, ascending: {4: (2, 5), 8: (6, 7)} gives (2, 3, 4, 5, 6, 7).

    Raises ValueError as `frame_ranges`.
    """
    ranges = frame_ranges(trained_frames).values()
    return tuple(n for first, last in ranges for n in range(first, last + 1))
