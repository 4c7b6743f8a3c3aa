"""The rule that selects the sub-network for a number of frames (paper §3.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise


def nearest(frames: int, trained_frames: Iterable[int]) -> int:
    """Return the trained frame count nearest to ``frames``; of two equally near ones, the larger.

    For (4, 8, 16): 5 frames give 4, 6 give 8, 12 give 16 and 40 give 16. A count with a range is as
    near as its range: for {4: (2, 5), 8: (6, 9), 16: (10, 20)}, 10 frames give 16.

    Raises ValueError if ``frames`` is less than 1, or ``trained_frames`` is not valid.
    """
    if frames < 1:
        raise ValueError(f"the clip has {frames} frames; at least 1 is needed")
    ranges = frame_ranges(trained_frames)
    distance = {n: max(low - frames, 0, frames - high) for n, (low, high) in ranges.items()}
    return min(ranges, key=lambda count: (distance[count], -count))


def frame_ranges(trained_frames: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return each trained count with its range, ascending; (4, 8) gives {4: (4, 4), 8: (8, 8)}.

    Raises ValueError unless they are different positive integers, in ranges that do not overlap.
    """
    counts = tuple(trained_frames)
    given = trained_frames if isinstance(trained_frames, Mapping) else {n: (n, n) for n in counts}
    ranges = {n: tuple(given[n]) for n in counts}
    whole = all(type(m) is int and m > 0 for n, ends in ranges.items() for m in (n, *ends))
    if whole and 0 < len(ranges) == len(counts) and {*map(len, ranges.values())} == {2}:
        ranges = dict(sorted(ranges.items()))
        apart = all(left[1] < right[0] for left, right in pairwise(ranges.values()))
        if apart and all(low <= n <= high for n, (low, high) in ranges.items()):
            return ranges
    raise ValueError(
        f"trained_frames is {given if given is trained_frames else counts}; expected different "
        "positive integers, e.g. (4, 8, 16), or separate ranges, e.g. {4: (2, 5), 8: (6, 11)}"
    )
