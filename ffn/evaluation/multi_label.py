"""Metrics of data sets with several labels per video: mean average precision and F1.

The logits of all videos are gathered, so the metrics are exact for any number of processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ffn.evaluation.results import Predictions
from ffn.files import write_csv

MEASURES = ("ap", "precision", "recall", "f1")  # of a class
UNREADABLE = -torch.inf  # logits of a video that cannot be decoded: none of its labels is found


def average_precision(scores: Tensor, positive: Tensor) -> float:
    """Non-interpolated average precision of one class, ``sum_n (R_n - R_{n-1}) P_n``.

    P_n and R_n are precision and recall of the videos with at least the n-th largest of the
    different scores; videos with equal scores count together. It equals
    ``sklearn.metrics.average_precision_score``. A video with the score ``UNREADABLE`` is in no P_n
    and R_n, but counts in the number of positive videos: its label is not found.

    Args:
        scores: (N,), larger for more probable videos.
        positive: (N,) bool.

    Returns:
        The average precision, 0 to 1; NaN without a positive video.
    """
    readable = scores != UNREADABLE
    total = int(positive.sum())
    scores, order = scores[readable].sort(descending=True)
    found = positive[readable][order].double().cumsum(0)
    last = torch.ones_like(scores, dtype=torch.bool)  # of the videos with an equal score
    last[:-1] = scores[1:] != scores[:-1]
    ranks = last.nonzero().flatten()
    found = found[ranks]
    gained = found.diff(prepend=found.new_zeros(1))
    return float((gained * found / (ranks + 1)).sum()) / total if total else float("nan")


def class_measures(logits: Tensor, label: Tensor) -> dict[str, Tensor]:
    """Metrics per class, 0 to 1.

    Args:
        logits: (N, K); rows of ``UNREADABLE`` for videos that cannot be decoded.
        label: (N, K), 1 for the classes of a video.

    Returns:
        (K,) float64 each: ``ap``, NaN for a class without positive videos; ``precision`` and
        ``recall`` of the answers with a probability of 0.5 or more, NaN for 0 / 0; and ``f1``,
        their harmonic mean, NaN if the class has neither labels nor answers.
    """
    positive, answer = label > 0, logits >= 0
    right = (answer & positive).sum(0).double()
    ap = [average_precision(x, y) for x, y in zip(logits.T, positive.T, strict=True)]
    return {
        "ap": torch.tensor(ap, dtype=torch.float64),
        "precision": right / answer.sum(0),
        "recall": right / positive.sum(0),
        "f1": 2 * right / (answer.sum(0) + positive.sum(0)),
    }


def multi_label_accuracy(logits: Tensor, label: Tensor) -> dict[str, float]:
    """Metrics of a data set, in percent.

    Args:
        logits: (N, K) of every video; rows of ``UNREADABLE`` where it cannot be decoded.
        label: (N, K), 1 for the classes of a video.

    Returns:
        ``map``, the mean of the average precision (:func:`average_precision`) over the classes with
        a positive video, and ``f1`` of all answers with a probability of 0.5 or more (micro
        average: ``2 TP / (2 TP + FP + FN)`` over all videos and classes).

    Raises:
        ValueError: no video has a label.
    """
    positive, answer = label > 0, logits >= 0
    if not positive.any():
        raise ValueError(
            "no video has a label; the mean average precision needs a class with a positive video"
        )
    each = [average_precision(x, y) for x, y in zip(logits.T, positive.T, strict=True)]
    found = torch.tensor(each, dtype=torch.float64)
    right = float((answer & positive).sum())
    return {
        "map": 100 * float(found.nanmean()),
        "f1": 100 * 2 * right / float(answer.sum() + positive.sum()),
    }


def save_multi_label_classes(predictions: Predictions, classes: Sequence[str], path: Path) -> Path:
    """Write a CSV file with a row per frame count and class.

    ``videos`` is the number of videos with the class, ``failed`` that of those which cannot be
    decoded. ``ap``, ``precision``, ``recall`` and ``f1`` are in percent, see
    :func:`class_measures`; empty where they are not defined.

    Args:
        predictions: of a network.
        classes: class names.
        path: the file.
    """
    label, ok = predictions.label, predictions.ok
    videos, failed = (label > 0).sum(0).tolist(), (label[~ok] > 0).sum(0).tolist()
    rows: list[tuple] = [("frames", "class", "videos", "failed", *MEASURES)]
    for frames, logits in predictions.logits.items():
        found = class_measures(logits.where(ok[:, None], UNREADABLE), label)
        for i, name in enumerate(classes):
            values = [100 * float(found[measure][i]) for measure in MEASURES]
            shown = ("" if math.isnan(value) else value for value in values)
            rows.append((frames, name, videos[i], failed[i], *shown))
    return write_csv(path, rows)
