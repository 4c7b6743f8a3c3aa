"""Results per class: accuracy, the most frequent wrong answer, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ffn.evaluation.results import Predictions
from ffn.files import write_csv

COLUMNS = ("frames", "class", "videos", "failed", "top1", "wrong_answer", "wrong_videos")


def confusion_matrix(predictions: Predictions, frames: int, num_classes: int) -> Tensor:
    """Count the answers per class; videos that cannot be decoded are left out.

    Args:
        predictions: of a network.
        frames: one of the tested frame counts.
        num_classes: K.

    Returns:
        (K, K) int64: row = class of the video, column = answer of the network.

    Raises:
        ValueError: the network has another number of classes.
    """
    found = predictions.logits[frames].shape[1]
    if found != num_classes:
        raise ValueError(
            f"num_classes is {num_classes}, and the logits have {found} classes; give the classes "
            "of the network"
        )
    answer, _ = predictions.answers(frames)
    cells = (predictions.label * num_classes + answer)[predictions.ok]
    counts = torch.bincount(cells, minlength=num_classes**2)
    return counts.view(num_classes, num_classes)


def save_classes(predictions: Predictions, classes: Sequence[str], path: Path) -> Path:
    """Write a CSV file with a row per frame count and class.

    ``top1`` is in percent of all videos of the class; it is empty for a class without videos.
    ``wrong_answer`` is the most frequent wrong class, the first of equal ones, and ``wrong_videos``
    the number of its videos; both are empty if there is none.

    Args:
        predictions: of a network.
        classes: class names.
        path: the file.
    """
    rows = []
    videos = torch.bincount(predictions.label, minlength=len(classes)).tolist()
    failed = torch.bincount(predictions.label[~predictions.ok], minlength=len(classes)).tolist()
    for frames in predictions.logits:
        matrix = confusion_matrix(predictions, frames, len(classes))
        right = matrix.diagonal().tolist()
        most, wrong = matrix.clone().fill_diagonal_(0).max(1)
        for i, name in enumerate(classes):
            top1 = 100 * right[i] / videos[i] if videos[i] else ""
            mistake = (classes[int(wrong[i])], int(most[i])) if most[i] else ("", "")
            rows.append((frames, name, videos[i], failed[i], top1, *mistake))
    return write_csv(path, [COLUMNS, *rows])


def save_confusion(predictions: Predictions, classes: Sequence[str], path: Path) -> Path:
    """Write the confusion matrix of each frame count into one CSV file.

    The columns are ``frames``, ``class`` (of the videos), and the number of videos for each answer.

    Args:
        predictions: of a network.
        classes: class names.
        path: the file.
    """
    rows = [
        (frames, name, *counts)
        for frames in predictions.logits
        for name, counts in zip(
            classes, confusion_matrix(predictions, frames, len(classes)).tolist(), strict=True
        )
    ]
    return write_csv(path, [("frames", "class", *classes), *rows])


def most_confused(matrix: Tensor, limit: int) -> list[int]:
    """Select the classes of the most frequent confusions.

    Args:
        matrix: (K, K), see :func:`confusion_matrix`.
        limit: maximum number of classes, at least 2.

    Returns:
        All classes if there are at most ``limit``; else, ascending, those of the largest cells
        outside the diagonal, as many as fit.
    """
    classes = len(matrix)
    if classes <= limit:
        return list(range(classes))
    wrong = matrix.clone().fill_diagonal_(0).flatten()
    chosen: set[int] = set()
    for cell in wrong.argsort(descending=True, stable=True)[: int((wrong > 0).sum())].tolist():
        both = chosen | {*divmod(cell, classes)}
        if len(both) > limit:
            break
        chosen = both
    return sorted(chosen)
