"""Frame sampling: select the frames of a video that form a clip, in training and in tests.

Each rule takes the number of frames of the video and of the clip, at least 1 each (else it raises
ValueError), and returns 0-based indices in ascending order. Random draws come from the generator
that is passed in. If the video is shorter than the clip, its frames are repeated evenly.

Rules, named as in `RULES`; `clip_indices` has their test variants:

* `segment`: one frame from each of T equal segments (TSN, Wang et al. 2016; TSM, TEA), in training
  a random one (`segment_random`).
* `interval`: the test rule of the SlowFast and UniFormer configurations on Something-Something; in
  training `segment_random`.
* `dense`: T frames at a fixed stride inside a window of 64 frames (TSM on Kinetics), in training a
  random window.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ffn.frame_counts import WINDOW

RULES = ("segment", "interval", "dense")
CROPS = (1, 3)  # numbers of crops in a test


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

    Note:
        The reference code draws from `i * d … i * d + d - 1` with `d = n // s`: it never selects
        the last `n - s * d` frames (up to s - 1 of them), and returns all zeros if `n < s`. Here
        the segments cover the whole video, as in the test rule.
    """
    _check_counts(num_frames, frames)
    edges = np.arange(frames + 1) * num_frames // frames
    low, high = edges[:-1], np.maximum(edges[1:], edges[:-1] + 1)
    return generator.integers(low, high).tolist()


def dense(num_frames: int, frames: int, start: int) -> list[int]:
    """Frames at stride `64 // frames`, from `start`.

        >>> dense(100, 4, start=30)
        [30, 46, 62, 78]
        >>> dense(40, 4, start=0)  # shorter than the window: all of it, as segment_center
        [5, 15, 25, 35]

    A clip has at most 64 frames; `start` is in [0, max(0, num_frames - 64)].

    Note:
        In a video shorter than the window, the reference code wraps to the first frame (indices
        modulo n). This breaks the temporal order and can return one frame `frames` times (n = 4,
        T = 16). Here such a video is sampled evenly. Its training draws never select the last frame
        of the video; `sample_views` draws from all windows that fit.
    """
    _check_counts(num_frames, frames)
    if frames > WINDOW:
        raise ValueError(
            f"a dense clip has at most {WINDOW} frames; got {frames}. "
            "Use sampling 'segment' for longer clips"
        )
    if num_frames < WINDOW:
        return segment_center(num_frames, frames)
    return list(range(start, start + frames * (WINDOW // frames), WINDOW // frames))


def clip_indices(num_frames: int, frames: int, clips: int, rule: str) -> list[list[int]]:
    """Indices of the test clips of a video.

    * `segment`: one frame per segment, at the same offset in each; the offset of clip k is
      `(1/2 + k/clips) mod 1` of a segment. One clip is `segment_center`; two clips are TSM's
      `--twice_sample`: the middle and the start of each segment.
    * `interval`: with `seg = (n - 1) / T`, index i of clip k is
      `round(seg * i) + int(seg / (clips + 1) * (k + 1))`, rounding half to even (SlowFast and
      UniFormer on Something-Something).
    * `dense`: windows whose starts are spread evenly over the video, or the middle one (TSM and
      SlowFast on Kinetics).

        >>> clip_indices(16, 4, 2, "segment")
        [[2, 6, 10, 14], [0, 4, 8, 12]]
        >>> clip_indices(17, 4, 3, "interval")
        [[1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
        >>> clip_indices(75, 4, 3, "dense")  # starts 0, 5 and 11
        [[0, 16, 32, 48], [5, 21, 37, 53], [11, 27, 43, 59]]

    Args:
        num_frames: Frames of the video, at least 1.
        frames: Frames of each clip, at least 1.
        clips: Number of clips, at least 1.
        rule: One of `RULES`.

    Returns:
        `clips` lists of `frames` ascending indices in [0, num_frames).

    Raises:
        ValueError: if the rule is unknown, or a number is outside its range.
    """
    _check_rule(rule)
    _check_counts(num_frames, frames)
    if clips < 1:
        raise ValueError(f"there are {clips} clips; expected at least 1")
    if rule == "dense":
        last = max(0, num_frames - WINDOW)
        starts = [last // 2] if clips == 1 else np.linspace(0, last, clips, dtype=int).tolist()
        return [dense(num_frames, frames, start) for start in starts]
    if rule == "interval":
        seg = (num_frames - 1) / frames
        shifts = [int(seg / (clips + 1) * (k + 1)) for k in range(clips)]
        return [[round(seg * i) + shift for i in range(frames)] for shift in shifts]
    tick = num_frames / frames
    starts = [tick * ((clips + 2 * k) % (2 * clips)) / (2 * clips) for k in range(clips)]
    return [[int(start + tick * i) for i in range(frames)] for start in starts]


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
        ValueError: if the rule is unknown, or a number is below 1.
    """
    _check_rule(rule)
    if nested and len(views) > 1:
        largest = max(views)
        outer = sample_views(num_frames, [largest], rule=rule, generator=generator)[largest]
        chosen = sample_views(largest, views, generator=generator)
        return {v: [outer[i] for i in chosen[v]] for v in views}
    if generator is None:
        return {v: clip_indices(num_frames, v, 1, rule)[0] for v in views}
    if rule == "dense":
        start = int(generator.integers(max(0, num_frames - WINDOW) + 1))
        return {v: dense(num_frames, v, start) for v in views}
    return {v: segment_random(num_frames, v, generator) for v in views}


@dataclass(frozen=True)
class Protocol:
    """Temporal clips and spatial crops of a test, named `CLIPSxCROPS` as in papers.

    Each clip is tested at every crop; the prediction for a video is the mean over these views.

    Attributes:
        clips: Clips per video and view, spread over its duration, see `clip_indices`.
        crops: Crops per clip: 1 (center) or 3 (both ends and center of the longer side), see
            `EvalTransform`.
    """

    clips: int = 1
    crops: int = 1

    def __post_init__(self) -> None:
        if self.clips < 1 or self.crops not in CROPS:
            raise ValueError(
                f"protocol {self} is unknown; expected CLIPSxCROPS with at least 1 clip and "
                f"{' or '.join(map(str, CROPS))} crops, e.g. 1x1, 1x3, 2x3 or 10x3"
            )

    @classmethod
    def parse(cls, text: str) -> Protocol:
        """Parse a name such as `2x3`.

        Raises:
            ValueError: if the name is invalid.
        """
        parts = re.fullmatch(r"(\d+)x(\d+)", text)
        if parts is None:
            raise ValueError(
                f"protocol {text!r} is unknown; expected CLIPSxCROPS, e.g. 1x1, 1x3, 2x3 or 10x3"
            )
        return cls(*map(int, parts.groups()))

    @property
    def views(self) -> int:
        """Forward passes per video and number of frames, clips times crops."""
        return self.clips * self.crops

    def __str__(self) -> str:
        return f"{self.clips}x{self.crops}"


def _check_rule(rule: str) -> None:
    if rule not in RULES:
        raise ValueError(f"sampling {rule!r} is unknown; expected one of {', '.join(RULES)}")


def _check_counts(num_frames: int, frames: int) -> None:
    if num_frames < 1:
        raise ValueError(f"the video has {num_frames} frames; expected at least 1")
    if frames < 1:
        raise ValueError(f"the clip has {frames} frames; expected at least 1")
