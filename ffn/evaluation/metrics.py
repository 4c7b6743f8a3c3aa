"""Metrics of a data set from one result per video, which processes gather.

With one label per video the result is the rank of the label in the logits; with several labels it
is the logits. Each process computes the results of its own videos, and the metrics of all videos
are exact for any number of processes. The labels of a data set tell its kind: (N,) class indices,
or (N, K) with ones for several labels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ffn.evaluation.multi_label import NOT_FOUND, multi_label_accuracy
from ffn.labels import LabelKind

UNREADABLE = torch.iinfo(torch.int64).max  # rank of a video that cannot be decoded: wrong
NOT_FINITE = -1  # rank of a video with NaN or infinite logits: raised as an error later


def label_ranks(logits: Tensor, label: Tensor) -> Tensor:
    """Return the number of classes ranked above each label; 0 if the label has the largest logit.

    Of two classes with equal logits the one with the smaller index ranks higher.

    Args:
        logits: (B, K).
        label: (B,), class indices.

    Returns:
        (B,) int64; ``NOT_FINITE`` where a row of logits holds NaN or an infinity.

    Raises:
        ValueError: the logits are not a matrix, or a label is not a class of the model.
    """
    if logits.ndim != 2:
        raise ValueError(f"logits have shape {tuple(logits.shape)}; expected (B, K)")
    classes = logits.shape[1]
    if label.numel() and not 0 <= int(label.min()) <= int(label.max()) < classes:
        raise ValueError(
            f"labels are {int(label.min())} to {int(label.max())}; the model has classes 0 to "
            f"{classes - 1}. Use a model and annotations of the same data set"
        )
    own = logits.gather(1, label[:, None])  # (B, 1)
    smaller = torch.arange(classes, device=logits.device) < label[:, None]  # (B, K)

    ranks = ((logits > own) | ((logits == own) & smaller)).sum(1)

    return torch.where(logits.isfinite().all(1), ranks, NOT_FINITE)


def accuracy(ranks: Tensor, label: Tensor) -> dict[str, float]:
    """Compute the metrics of a data set, in percent.

    Args:
        ranks: (N,), of every video; see :func:`label_ranks`. ``UNREADABLE`` and ``NOT_FINITE``
            count as wrong.
        label: (N,), class indices.

    Returns:
        ``top1``; ``top5``, which for five classes or fewer is the share of decoded videos; and
        ``mean_class``, the top-1 accuracy per class, averaged over the classes that occur.

    Raises:
        ValueError: there is no video.
    """
    if not len(label):
        raise ValueError("no videos to evaluate: the data set is empty")
    right = (ranks == 0).double()
    per_class = torch.bincount(label, right) / torch.bincount(label)  # 0 / 0 for absent classes
    return {
        "top1": 100 * float(right.mean()),
        "top5": 100 * float(((ranks >= 0) & (ranks < 5)).double().mean()),
        "mean_class": 100 * float(per_class.nanmean()),
    }


def video_results(
    logits: Tensor, label: Tensor, ok: Tensor, labels: LabelKind | None = None
) -> Tensor:
    """The results of videos on the CPU: ranks (B,), or logits (B, K) with several labels.

    Args:
        logits: (B, K).
        label: (B,) class indices, or (B, K).
        ok: (B,), False where a video cannot be decoded.
        labels: their kind; another one than classes has its own results, (B, ...) float.

    Raises:
        ValueError: the model has other classes than the labels.
    """
    if hasattr(labels, "results"):
        return labels.results(logits, ok)
    if label.ndim == 1:
        return label_ranks(logits, label).cpu().where(ok, UNREADABLE)
    if logits.shape != label.shape:
        raise ValueError(
            f"logits have shape {tuple(logits.shape)}, labels {tuple(label.shape)}. Use a "
            "model and annotations of the same data set"
        )
    finite = logits.isfinite().all(1, keepdim=True)
    return logits.where(finite, torch.nan).cpu().where(ok[:, None], NOT_FOUND)


def not_finite(results: Tensor) -> Tensor:
    """Videos (B,) whose logits are NaN or infinite, by their results."""
    return results == NOT_FINITE if results.ndim == 1 else results.isnan().any(1)


def dataset_metrics(
    results: Tensor, label: Tensor, labels: LabelKind | None = None
) -> dict[str, float]:
    """Metrics of a data set in percent, from the results of all videos."""
    if hasattr(labels, "metrics"):
        return labels.metrics(results, label)
    return accuracy(results, label) if label.ndim == 1 else multi_label_accuracy(results, label)
