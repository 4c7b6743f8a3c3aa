"""Join the predictions of windows of a long video to segments with one label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ffn.serve.prediction import Prediction


@dataclass(frozen=True)
class Segment:
    """A part of a video with one label.

    Attributes:
        start, end: In seconds.
        label: Name of the class.
        probability: Of the class, mean over the time of the segment.
    """

    start: float
    end: float
    label: str
    probability: float

    def to_dict(self) -> dict[str, Any]:
        """The segment as JSON values."""
        return {
            "start": round(self.start, 6),
            "end": round(self.end, 6),
            "label": self.label,
            "probability": self.probability,
        }


def merge_windows(windows: Iterable[Prediction], *, threshold: float = 0.5) -> list[Segment]:
    """Segments of a video, from the predictions of its windows.

    At each time, the probability of a class is its mean over the windows that contain the time. A
    segment is a longest part without change of the label. With one label per video, the label is
    the most probable class, and the segments cover the video. With several, each class has segments
    of its own, where its probability is at least the threshold.

    Args:
        windows: Of one video, see :meth:`ffn.Predictor.windows`.
        threshold: For several labels per video; at most 1.

    Returns:
        The segments by start, those of the same start by probability, descending.

    Raises:
        ValueError: if a prediction has no window, or the predictions are of several videos.
    """
    windows = list(windows)
    if not windows:
        return []
    if any(window.start is None for window in windows):
        raise ValueError("a prediction has no start and end; expected those of Predictor.windows")
    if len({window.path for window in windows}) > 1:
        raise ValueError("the predictions are of several videos; merge those of each video alone")

    pieces = list(_pieces(windows))
    if not windows[0].multi_label:
        chosen = [[int(probabilities.argmax())] for _, _, probabilities in pieces]
    else:
        chosen = [(p >= threshold).nonzero().flatten().tolist() for _, _, p in pieces]
    classes = windows[0].classes
    segments = []
    for k in sorted({k for labels in chosen for k in labels}):
        run: list[tuple[float, float, float]] = []  # start, end, probability
        for (start, end, probabilities), labels in zip(pieces, chosen, strict=True):
            if run and (k not in labels or run[-1][1] < start):
                segments.append(_segment(run, classes[k]))
                run = []
            if k in labels:
                run.append((start, end, float(probabilities[k])))
        if run:
            segments.append(_segment(run, classes[k]))
    return sorted(segments, key=lambda segment: (segment.start, -segment.probability))


def _pieces(windows: Sequence[Prediction]) -> Iterable[tuple[float, float, Tensor]]:
    """Start, end and mean probabilities (K,) of each part between two ends of windows."""
    ends = sorted({round(t, 6) for window in windows for t in (window.start, window.end)})
    ordered = sorted(windows, key=lambda window: window.start)
    active: list[Prediction] = []
    upcoming = iter(ordered)
    following = next(upcoming, None)
    for start, end in pairwise(ends):
        middle = (start + end) / 2
        while following is not None and following.start < middle:
            active.append(following)
            following = next(upcoming, None)
        active = [window for window in active if window.end > middle]
        if active:
            yield start, end, torch.stack([w.probabilities for w in active]).mean(0)


def _segment(run: Sequence[tuple[float, float, float]], label: str) -> Segment:
    start, end = run[0][0], run[-1][1]
    total = sum((stop - begin) * probability for begin, stop, probability in run)
    return Segment(start, end, label, total / (end - start))
