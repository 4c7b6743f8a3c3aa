"""The rule that selects the sub-network for a number of frames (paper §3.4)."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(frames: int, trained_frames: Iterable[int]) -> int:
    """Return the trained frame count nearest to ``frames``; of two equally near ones, the larger.

    For (4, 8, 16): 5 frames give 4, 6 give 8, 12 give 16 and 40 give 16.

    Raises:
        ValueError: ``frames`` is less than 1, or ``trained_frames`` is not valid.
    """
    if frames < 1:
        raise ValueError(f"the clip has {frames} frames; at least 1 is needed")
    counts = check_trained_frames(trained_frames)
    return min(counts, key=lambda count: (abs(count - frames), -count))


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
