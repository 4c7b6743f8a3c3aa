"""Results per class: accuracy, the most frequent wrong answer, and the confusion matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ffn.evaluation.multi_label import NOT_FOUND, class_measures
from ffn.evaluation.plots import GRAY, new_figure, write_figure
from ffn.evaluation.results import Predictions, Sweep
from ffn.files import write_csv

NAMED = 20  # maximum number of classes whose names and numbers the figure shows
PANELS = 4  # maximum number of panels in a row of the figure


def save_details(sweep: Sweep, classes: Sequence[str], folder: str | Path) -> list[Path]:
    """Write the results per class; existing files are replaced.

    Args:
        sweep: made with ``keep_logits=True``, on rank 0.
        classes: class names.
        folder: exists.

    Returns:
        ``NAME.classes.csv``, ``NAME.confusion.csv`` and ``NAME.confusion.png``; of several labels
        per video only the first.

    Raises:
        ImportError: matplotlib is not installed; the other files are complete.
    """
    kept, start = sweep.predictions, str(Path(folder) / sweep.name.replace("/", "_"))
    if kept.multi_label:
        return [save_multi_label_classes(kept, classes, Path(f"{start}.classes.csv"))]
    return [
        save_classes(kept, classes, Path(f"{start}.classes.csv")),
        save_confusion(kept, classes, Path(f"{start}.confusion.csv")),
        save_confusion_figure(kept, classes, f"{start}.confusion.png", name=sweep.name),
    ]


def confusion_matrix(predictions: Predictions, frames: int) -> Tensor:
    """Count the answers per class; videos that cannot be decoded are left out.

    Args:
        predictions: of a network.
        frames: one of the tested frame counts.

    Returns:
        (K, K) int64: row = class of the video, column = answer of the network.
    """
    classes = predictions.logits[frames].shape[1]
    answer, _ = predictions.answers(frames)
    cells = (predictions.label * classes + answer)[predictions.ok]
    return torch.bincount(cells, minlength=classes**2).view(classes, classes)


def save_classes(predictions: Predictions, classes: Sequence[str], path: Path) -> Path:
    """Write a CSV file with a row per frame count and class.

    ``top1`` is in percent of all videos of the class; it is empty for a class without videos.
    ``wrong_answer`` is the most frequent wrong class, the first of equal ones, and ``wrong_videos``
    the number of its videos; both are empty if there is none.
    """
    rows = []
    videos = torch.bincount(predictions.label, minlength=len(classes)).tolist()
    failed = torch.bincount(predictions.label[~predictions.ok], minlength=len(classes)).tolist()
    for frames in predictions.logits:
        matrix = confusion_matrix(predictions, frames)
        right = matrix.diagonal().tolist()
        most, wrong = matrix.clone().fill_diagonal_(0).max(1)
        for i, name in enumerate(classes):
            top1 = 100 * right[i] / videos[i] if videos[i] else ""
            mistake = (classes[int(wrong[i])], int(most[i])) if most[i] else ("", "")
            rows.append((frames, name, videos[i], failed[i], top1, *mistake))
    header = ("frames", "class", "videos", "failed", "top1", "wrong_answer", "wrong_videos")
    return write_csv(path, [header, *rows])


def save_multi_label_classes(predictions: Predictions, classes: Sequence[str], path: Path) -> Path:
    """Write a CSV file with a row per frame count and class.

    ``videos`` is the number of videos with the class, ``failed`` that of those which cannot be
    decoded. ``ap``, ``precision``, ``recall`` and ``f1`` are in percent, see
    :func:`class_measures`; empty where they are not defined.
    """
    label, ok = predictions.label, predictions.ok
    videos, failed = (label > 0).sum(0).tolist(), (label[~ok] > 0).sum(0).tolist()
    rows: list[tuple] = []
    for frames, logits in predictions.logits.items():
        found = class_measures(logits.where(ok[:, None], NOT_FOUND), label)
        for i, name in enumerate(classes):
            values = [100 * float(each[i]) for each in found.values()]
            shown = ("" if math.isnan(value) else value for value in values)
            rows.append((frames, name, videos[i], failed[i], *shown))
    header = ("frames", "class", "videos", "failed", "ap", "precision", "recall", "f1")
    return write_csv(path, [header, *rows])


def save_confusion(predictions: Predictions, classes: Sequence[str], path: Path) -> Path:
    """Write the confusion matrix of each frame count into one CSV file.

    The columns are ``frames``, ``class`` (of the videos), and the number of videos for each answer.
    """
    rows = [
        (frames, name, *counts)
        for frames in predictions.logits
        for name, counts in zip(
            classes, confusion_matrix(predictions, frames).tolist(), strict=True
        )
    ]
    return write_csv(path, [("frames", "class", *classes), *rows])


def save_confusion_figure(
    predictions: Predictions, classes: Sequence[str], path: str | Path, *, name: str
) -> Path:
    """Draw the confusion matrix of each frame count into a file.

    A cell is the share of a class's decoded videos that got an answer, in percent. Names and
    numbers are shown for up to `NAMED` classes.

    Raises:
        ImportError: matplotlib is not installed.
    """
    counts = [*predictions.logits]
    names = [one[:32] for one in classes] if len(classes) <= NAMED else []
    rows, columns = math.ceil(len(counts) / PANELS), min(len(counts), PANELS)
    side = 3.0 + 0.25 * len(names)
    figure = new_figure(columns * side, 1.0 + rows * side)
    figure.set_layout_engine("compressed")  # the panels are square
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    for axes in panels[len(counts) :]:
        axes.set_visible(False)
    for axes, frames in zip(panels, counts, strict=False):
        matrix = confusion_matrix(predictions, frames)
        shares = 100 * matrix / matrix.sum(1, keepdim=True).clamp(min=1)
        axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=100)
        axes.set_title(f"{frames} frames", fontsize=10)
        style = {"fontsize": 8, "parse_math": False}
        axes.set_xticks(range(len(names)), names, rotation=90, **style)
        axes.set_yticks(range(len(names)), names, **style)
        for row, column in (shares >= 0.5).nonzero().tolist() if names else ():
            share = float(shares[row, column])
            color = "white" if share > 55 else "black"
            place = {"ha": "center", "va": "center", "fontsize": 7, "color": color}
            axes.text(column, row, f"{share:.0f}", **place)
    figure.suptitle(name, fontsize=11, parse_math=False)
    note = "row: class of the videos; column: answer; cells: % of the row's decoded videos"
    figure.supxlabel(note, fontsize=8.5, color=GRAY)
    return write_figure(figure, path)
