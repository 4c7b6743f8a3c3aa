"""Figure of the confusion matrices of a network: one panel per frame count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ffn.evaluation.confusion import confusion_matrix, most_confused
from ffn.evaluation.plots import GRAY, new_figure, write_figure
from ffn.evaluation.results import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 20  # maximum number of classes in the figure
NAME = 32  # maximum length of a class name in the figure
COLUMNS = 4  # maximum number of panels in a row


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
    rows = math.ceil(len(found) / COLUMNS)
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
