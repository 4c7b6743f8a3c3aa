"""Join the predictions of windows of a long video to segments with one label."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

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
        ValueError: if a prediction has no window.
    """
    windows = sorted(windows, key=lambda window: window.start or 0.0)
    if any(window.start is None for window in windows):
        raise ValueError("a prediction has no start and end; expected those of Predictor.windows")
    pieces = list(_pieces(windows))
    if not pieces:
        return []
    classes, mean = windows[0].classes, torch.stack([p for _, _, p in pieces])  # (N, K)
    shown = mean >= threshold
    if not windows[0].multi_label:
        shown = F.one_hot(mean.argmax(1), len(classes)).bool()
    segments = []
    for k in shown.any(0).nonzero().flatten().tolist():
        run: list[tuple[float, float, float]] = []  # start, end, probability
        for (start, end, probabilities), is_shown in zip(pieces, shown[:, k], strict=True):
            if run and (not is_shown or run[-1][1] < start):
                segments.append(_segment(run, classes[k]))
                run = []
            if is_shown:
                run.append((start, end, float(probabilities[k])))
        if run:
            segments.append(_segment(run, classes[k]))
    return sorted(segments, key=lambda segment: (segment.start, -segment.probability))


def _pieces(windows: Sequence[Prediction]) -> Iterator[tuple[float, float, Tensor]]:
    """Start, end and mean probabilities (K,) of each part between two ends of sorted windows."""
    ends = sorted({round(t, 6) for window in windows for t in (window.start, window.end)})
    upcoming, active = deque(windows), []
    for start, end in pairwise(ends):
        middle = (start + end) / 2
        while upcoming and upcoming[0].start < middle:
            active.append(upcoming.popleft())
        active = [window for window in active if window.end > middle]
        if active:
            yield start, end, torch.stack([w.probabilities for w in active]).mean(0)


def _segment(run: Sequence[tuple[float, float, float]], label: str) -> Segment:
    start, end = run[0][0], run[-1][1]
    total = sum((stop - begin) * probability for begin, stop, probability in run)
    return Segment(start, end, label, total / (end - start))
