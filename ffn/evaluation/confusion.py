"""Results per class: accuracy, the most frequent wrong answer, and the confusion matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ffn.evaluation.multi_label import save_multi_label_classes
from ffn.evaluation.plots import GRAY, new_figure, write_figure
from ffn.evaluation.results import Predictions, Sweep
from ffn.files import write_csv

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 20  # maximum number of classes in the figure
NAME = 32  # maximum length of a class name in the figure
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
    header = ("frames", "class", "videos", "failed", "top1", "wrong_answer", "wrong_videos")
    return write_csv(path, [header, *rows])


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


def save_confusion_figure(
    predictions: Predictions, classes: Sequence[str], path: str | Path, *, name: str
) -> Path:
    """Draw the confusion matrix of each frame count into a file.

    A cell is the share of a class's decoded videos that got an answer, in percent. Of more than
    `SHOWN` classes, those of the most frequent confusions, summed over the frame counts, are shown.

    Args:
        predictions: of a network.
        classes: class names.
        path: ``.png``, or any format of matplotlib.
        name: of the network.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: matplotlib does not support the format.
    """
    found = {t: confusion_matrix(predictions, t, len(classes)) for t in predictions.logits}
    shown = most_confused(sum(found.values()), SHOWN)
    names = [shorten(classes[i]) for i in shown]
    rows = math.ceil(len(found) / PANELS)
    columns = math.ceil(len(found) / rows)
    side, names_in = max(2.2, 0.27 * len(shown)), 0.2 + 0.07 * max(map(len, names), default=0)
    named_rows = 2 if rows * columns > len(found) else 1  # of the names below the panels
    width = max(6.0, names_in + columns * (side + 0.2))
    figure = new_figure(width, 1.0 + named_rows * names_in + rows * (side + 0.3))
    figure.set_layout_engine("compressed")  # the panels are square

    for place, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        if place >= len(found):
            axes.set_visible(False)
            continue
        frames, matrix = list(found.items())[place]
        of_class = matrix.sum(1, keepdim=True).clamp(min=1)
        _draw(axes, (100 * matrix / of_class)[shown][:, shown].numpy(), names)
        axes.set_title(f"{frames} frames", fontsize=10)
        axes.tick_params(labelleft=place % columns == 0, labelbottom=place + columns >= len(found))
    figure.suptitle(name, fontsize=11, parse_math=False)
    note = "row: class of the videos; column: answer; cells: % of the row's decoded videos"
    if len(shown) < len(classes):
        note += f"\n{len(shown)} of {len(classes)} classes, with the most frequent confusions"
    figure.supxlabel(note, fontsize=8.5, color=GRAY)
    return write_figure(figure, path)


def _draw(axes: Axes, shares: np.ndarray, names: Sequence[str]) -> None:
    """One matrix: blue cells with their numbers."""
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    places = range(len(names))
    style = {"fontsize": 8, "parse_math": False}
    axes.set_xticks(places, names, rotation=90, **style)
    axes.set_yticks(places, names, **style)
    axes.tick_params(length=0)
    axes.spines[:].set_color("#DDDDDD")
    for row, column in zip(*np.nonzero(shares >= 0.5), strict=True):
        share = shares[row, column]
        color = "white" if share > 55 else "black"
        axes.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=7, color=color)


def shorten(name: str) -> str:
    """The start and the end of a long name."""
    return name if len(name) <= NAME else f"{name[: NAME - NAME // 2 - 1]}…{name[-(NAME // 2) :]}"
