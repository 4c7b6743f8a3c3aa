"""Test protocols: the number of clips and crops per video, named `CLIPSxCROPS` as in papers.

The clips of a video are spread over its duration; each clip is tested at every crop. The prediction
for a video is the mean over these views (`ffn.evaluation`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ffn.data.sampling import RULES, dense_clips, segment_views
from ffn.data.transforms import CROPS


@dataclass(frozen=True)
class Protocol:
    """Temporal clips and spatial crops of a test.

    Attributes:
        clips: Clips per video and view, see :func:`clip_indices`.
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


def clip_indices(num_frames: int, frames: int, clips: int, rule: str) -> list[list[int]]:
    """Indices of the test clips of a video.

    * `segment`: one frame per segment, at the same offset in each; the offset of clip k is
      `(1/2 + k/clips) mod 1` of a segment. One clip is `segment_center`; two clips are TSM's
      `--twice_sample`: the middle and the start of each segment.
    * `interval`: `segment_views` (SlowFast and UniFormer on Something-Something).
    * `dense`: `dense_clips`, starts spread evenly over the video (TSM and SlowFast on Kinetics).

        >>> clip_indices(16, 4, 2, "segment")
        [[2, 6, 10, 14], [0, 4, 8, 12]]

    Args:
        num_frames: Frames of the video, at least 1.
        frames: Frames of each clip, at least 1.
        clips: Number of clips, at least 1.
        rule: One of `ffn.data.sampling.RULES`.

    Returns:
        `clips` lists of `frames` ascending indices in [0, num_frames).

    Raises:
        ValueError: if the rule is unknown, or a number is below 1.
    """
    if rule not in RULES:
        raise ValueError(f"sampling {rule!r} is unknown; expected one of {', '.join(RULES)}")
    if min(num_frames, frames, clips) < 1:
        raise ValueError(
            f"{clips} clips of {frames} frames from {num_frames}; expected numbers of at least 1"
        )
    if rule == "dense":
        return dense_clips(num_frames, frames, clips)
    if rule == "interval":
        return [segment_views(num_frames, frames, k, clips) for k in range(clips)]
    tick = num_frames / frames
    starts = [tick * ((clips + 2 * k) % (2 * clips)) / (2 * clips) for k in range(clips)]
    return [[int(start + tick * i) for i in range(frames)] for start in starts]
