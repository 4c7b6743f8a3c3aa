"""Metrics of data sets with several labels per video: mean average precision and F1.

The logits of all videos are gathered, so the metrics are exact for any number of processes.
"""

from __future__ import annotations

import torch
from torch import Tensor

NOT_FOUND = -torch.inf  # logits of a video that cannot be decoded: none of its labels is found


def average_precision(scores: Tensor, positive: Tensor) -> float:
    """Non-interpolated average precision of one class, ``sum_n (R_n - R_{n-1}) P_n``.

    P_n and R_n are precision and recall of the videos with at least the n-th largest of the
    different scores; videos with equal scores count together. It equals
    ``sklearn.metrics.average_precision_score``. A video with the score ``NOT_FOUND`` is in no P_n
    and R_n, but counts in the number of positive videos: its label is not found.

    Args:
        scores: (N,), larger for more probable videos.
        positive: (N,) bool.

    Returns:
        The average precision, 0 to 1; NaN without a positive video.
    """
    readable = scores != NOT_FOUND
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
        logits: (N, K); rows of ``NOT_FOUND`` for videos that cannot be decoded.
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
        logits: (N, K) of every video; rows of ``NOT_FOUND`` where it cannot be decoded.
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
    found = class_measures(logits, label)["ap"]
    right = float((answer & positive).sum())
    return {
        "map": 100 * float(found.nanmean()),
        "f1": 100 * 2 * right / float(answer.sum() + positive.sum()),
    }
