"""Frame sampling: select the frames of a video that form a clip.

Each rule takes the number of frames of the video and of the clip, and returns 0-based indices in
ascending order. Random draws come from the generator that is passed in. If the video is shorter
than the clip, its frames are repeated evenly.

Rules (training / test), named as in `RULES`:

* `segment`: one frame from each of T equal segments (TSN, Wang et al. 2016; TSM, TEA):
  `segment_random` / `segment_center`.
* `interval`: the test rule of the SlowFast and UniFormer configurations on Something-Something:
  `segment_random` / `segment_views`.
* `dense`: T frames at a fixed stride inside a window of 64 frames (TSM on Kinetics):
  `dense_start` then `dense` / the middle one of `dense_clips`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ffn.frame_counts import WINDOW

RULES = ("segment", "interval", "dense")


def segment_center(num_frames: int, frames: int) -> list[int]:
    """Middle frame of each of `frames` equal segments: the test rule of the 2-D networks.

    Index i is `int(tick / 2 + tick * i)` with `tick = num_frames / frames`.

        >>> segment_center(10, 4)  # segments of 2.5 frames
        [1, 3, 6, 8]
        >>> segment_center(3, 8)  # shorter than the clip: frames repeat evenly
        [0, 0, 0, 1, 1, 2, 2, 2]

    Args:
        num_frames: Frames of the video, at least 1.
        frames: Frames of the clip, at least 1.

    Returns:
        `frames` ascending indices in [0, num_frames).

    Raises:
        ValueError: if either number is below 1.

    Note:
        The reference code returns all zeros if `num_frames <= frames`; here the frames of such a
        video are repeated evenly.
    """
    _check_counts(num_frames, frames)
    tick = num_frames / frames
    return [int(tick / 2 + tick * i) for i in range(frames)]


def segment_random(num_frames: int, frames: int, generator: np.random.Generator) -> list[int]:
    """One uniformly drawn frame from each of `frames` segments: the training rule.

    Segment i covers the frames `floor(i * n / s) … floor((i + 1) * n / s) - 1`.

        >>> segment_random(10, 4, np.random.default_rng(0))  # from 0-1, 2-4, 5-6, 7-9
        [1, 3, 6, 7]
        >>> segment_random(3, 8, np.random.default_rng(0))  # nothing to draw
        [0, 0, 0, 1, 1, 1, 2, 2]

    Args:
        num_frames: Frames of the video, at least 1.
        frames: Frames of the clip, at least 1.
        generator: Source of the draws; `frames` integers are taken from it.

    Returns:
        `frames` ascending indices in [0, num_frames).

    Raises:
        ValueError: if either number is below 1.

    Note:
        The reference code draws from `i * d … i * d + d - 1` with `d = n // s`: it never selects
        the last `n - s * d` frames (up to s - 1 of them), and returns all zeros if `n < s`. Here
        the segments cover the whole video, as in the test rule.
    """
    _check_counts(num_frames, frames)
    edges = np.arange(frames + 1) * num_frames // frames
    low, high = edges[:-1], np.maximum(edges[1:], edges[:-1] + 1)
    return generator.integers(low, high).tolist()


def segment_views(num_frames: int, frames: int, view: int = 0, views: int = 1) -> list[int]:
    """One of `views` interleaved clips, each with one frame per segment.

    With `seg = (n - 1) / s`, index i is `round(seg * i) + int(seg / (views + 1) * (view + 1))`,
    rounding half to even (SlowFast and UniFormer on Something-Something, test time).

        >>> segment_views(17, 4)
        [2, 6, 10, 14]
        >>> [segment_views(17, 4, view, 3) for view in range(3)]
        [[1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]

    Args:
        num_frames: Frames of the video, at least 1.
        frames: Frames of the clip, at least 1.
        view: Index of the clip, in [0, views).
        views: Number of clips per video, at least 1.

    Returns:
        `frames` ascending indices in [0, num_frames).

    Raises:
        ValueError: if a number is outside its range.
    """
    _check_counts(num_frames, frames)
    if not 0 <= view < views:
        raise ValueError(f"view {view} of {views} does not exist; expected 0 <= view < views")
    seg = (num_frames - 1) / frames
    shift = int(seg / (views + 1) * (view + 1))
    return [round(seg * i) + shift for i in range(frames)]


def dense(num_frames: int, frames: int, start: int) -> list[int]:
    """Frames at stride `64 // frames`, from `start`.

        >>> dense(100, 4, start=30)
        [30, 46, 62, 78]
        >>> dense(40, 4, start=0)  # shorter than the window: all of it, as segment_center
        [5, 15, 25, 35]

    Args:
        num_frames: Frames of the video, at least 1.
        frames: Frames of the clip, in [1, 64].
        start: First frame, in [0, max(0, num_frames - 64)].

    Returns:
        `frames` ascending indices in [0, num_frames).

    Raises:
        ValueError: if a number is outside its range.

    Note:
        In a video shorter than the window, the reference code wraps to the first frame (indices
        modulo n). This breaks the temporal order and can return one frame `frames` times (n = 4,
        T = 16). Here such a video is sampled evenly.
    """
    _check_counts(num_frames, frames)
    if frames > WINDOW:
        raise ValueError(
            f"a dense clip has at most {WINDOW} frames; got {frames}. "
            "Use sampling 'segment' for longer clips"
        )
    if not 0 <= start <= max(0, num_frames - WINDOW):
        raise ValueError(
            f"start is {start} in a video of {num_frames} frames; "
            f"expected 0 … {max(0, num_frames - WINDOW)}"
        )
    if num_frames < WINDOW:
        return segment_center(num_frames, frames)
    return list(range(start, start + frames * (WINDOW // frames), WINDOW // frames))


def dense_start(num_frames: int, generator: np.random.Generator) -> int:
    """First frame of a random dense window, uniform over all windows that fit.

        >>> dense_start(100, np.random.default_rng(0))  # from 0 … 36
        31
        >>> dense_start(40, np.random.default_rng(0))
        0

    Args:
        num_frames: Frames of the video, at least 1.
        generator: Source of the draw; one integer is taken from it.

    Returns:
        An index in [0, max(0, num_frames - 64)].

    Raises:
        ValueError: if `num_frames` is below 1.

    Note:
        The reference code draws from 0 … n - 65 and never selects the last frame of the video.
    """
    _check_counts(num_frames, 1)
    return int(generator.integers(max(0, num_frames - WINDOW) + 1))


def dense_clips(num_frames: int, frames: int, clips: int = 10) -> list[list[int]]:
    """Dense clips whose starts are spread evenly over the video: the test rule of dense sampling.

        >>> dense_clips(75, 4, clips=3)  # starts 0, 5 and 11
        [[0, 16, 32, 48], [5, 21, 37, 53], [11, 27, 43, 59]]
        >>> dense_clips(75, 4, clips=1)  # one clip: the middle of the video
        [[5, 21, 37, 53]]

    Args:
        num_frames: Frames of the video, at least 1.
        frames: Frames of each clip, in [1, 64].
        clips: Number of clips, at least 1.

    Returns:
        `clips` lists of `frames` ascending indices.

    Raises:
        ValueError: if a number is outside its range.
    """
    _check_counts(num_frames, frames)
    if clips < 1:
        raise ValueError(f"clips is {clips}; expected at least 1")
    last = max(0, num_frames - WINDOW)
    starts = [last // 2] if clips == 1 else np.linspace(0, last, clips, dtype=int).tolist()
    return [dense(num_frames, frames, start) for start in starts]


def sample_views(
    num_frames: int,
    views: Sequence[int],
    *,
    rule: str = "segment",
    generator: np.random.Generator | None = None,
    nested: bool = False,
) -> dict[int, list[int]]:
    """Indices of several clips of one video, by the training or test variant of a rule.

    Dense views share one window, so that views of 4 and of 16 frames show the same event. Nested
    views are subsets of the largest view: one of its frames is taken from each segment of it, so
    that views of 4, 8 and 16 frames need 16 decoded frames instead of 28.

        >>> sample_views(32, (2, 4))
        {2: [8, 24], 4: [4, 12, 20, 28]}
        >>> sample_views(32, (2, 4), nested=True)
        {2: [12, 28], 4: [4, 12, 20, 28]}

    Args:
        num_frames: Frames of the video, at least 1.
        views: Frames of each clip, each at least 1.
        rule: One of `RULES`.
        generator: Source of random draws; None for the test variant of the rule.
        nested: Whether smaller views are subsets of the largest.

    Returns:
        The ascending indices of each view.

    Raises:
        ValueError: if the rule is unknown, there is no view, or a number is below 1.
    """
    if rule not in RULES:
        raise ValueError(f"sampling {rule!r} is unknown; expected one of {', '.join(RULES)}")
    if not views:
        raise ValueError("views is empty; expected at least one number of frames, e.g. (4, 8, 16)")
    if nested and len(views) > 1:
        largest = max(views)
        outer = sample_views(num_frames, [largest], rule=rule, generator=generator)[largest]
        chosen = {v: _segment(largest, v, generator) for v in views if v != largest}
        chosen[largest] = list(range(largest))
        return {v: [outer[i] for i in chosen[v]] for v in views}

    if rule == "dense":
        last = max(0, num_frames - WINDOW)
        start = last // 2 if generator is None else dense_start(num_frames, generator)
        return {v: dense(num_frames, v, start) for v in views}
    if rule == "interval" and generator is None:
        return {v: segment_views(num_frames, v) for v in views}
    return {v: _segment(num_frames, v, generator) for v in views}


def _segment(num_frames: int, frames: int, generator: np.random.Generator | None) -> list[int]:
    """Segment rule: random with a generator (training), centerd without (test)."""
    if generator is None:
        return segment_center(num_frames, frames)
    return segment_random(num_frames, frames, generator)


def _check_counts(num_frames: int, frames: int) -> None:
    if num_frames < 1:
        raise ValueError(f"the video has {num_frames} frames; expected at least 1")
    if frames < 1:
        raise ValueError(f"the clip has {frames} frames; expected at least 1")
