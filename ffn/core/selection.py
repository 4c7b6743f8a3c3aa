"""Which sub-network answers: the selection rule of the paper (§3.4), in one place."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(frames: int, trained_frames: Iterable[int]) -> int:
    """Return the trained frame count closest to ``frames``; of two equally close, the larger.

    Trained at (4, 8, 16), a clip of 5 frames runs as 4, of 6 as 8, of 12 as 16, of 40 as 16.

    Raises:
        ValueError: ``frames``, those of the clip, are fewer than 1, or no count was trained.
    """
    if frames < 1:
        raise ValueError(f"the clip has {frames} frames; at least 1 is needed")
    counts = check_trained_frames(trained_frames)
    return min(counts, key=lambda count: (abs(count - frames), -count))


def check_trained_frames(trained_frames: Iterable[int]) -> tuple[int, ...]:
    """Return the counts ascending; a ValueError if they are not distinct and positive."""
    counts = tuple(trained_frames)
    if not counts or any(not isinstance(c, int) or isinstance(c, bool) or c < 1 for c in counts):
        raise ValueError(
            f"trained_frames is {counts}; expected one or more positive integers, as (4, 8, 16)"
        )
    if len(set(counts)) < len(counts):
        raise ValueError(f"trained_frames {counts} names a count twice")
    return tuple(sorted(counts))
