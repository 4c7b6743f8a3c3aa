"""Figure of the results per class: accuracy at each frame count, and the most frequent mistake."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ffn.evaluation.confusion import confusion_matrix
from ffn.evaluation.confusion_figure import shorten
from ffn.evaluation.plots import (
    COLORS,
    GRAY,
    MARKERS,
    add_legend,
    new_figure,
    tidy,
    write_figure,
)
from ffn.evaluation.results import Predictions

SHOWN = 40  # maximum number of classes in the figure


def save_class_figure(
    predictions: Predictions, classes: Sequence[str], path: str | Path, *, name: str
) -> Path:
    """Draw the accuracy of each class at each frame count into a file.

    Classes are sorted by their accuracy at the largest frame count. Of more than `SHOWN` classes,
    those of the lowest accuracy are shown; classes without videos are left out. Of more counts
    than there are colors, as many are marked, evenly spread; gray lines contain all.

    Args:
        predictions: of a network.
        classes: class names.
        path: ``.png``, or any format of matplotlib.
        name: of the network.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: matplotlib does not support the format.
    """
    videos = torch.bincount(predictions.label, minlength=len(classes))
    matrices = {t: confusion_matrix(predictions, t, len(classes)) for t in predictions.logits}
    top1 = {t: 100 * m.diagonal() / videos.clamp(min=1) for t, m in matrices.items()}
    largest = max(matrices)
    used = videos.nonzero().flatten()
    order = used[top1[largest][used].argsort(stable=True)].tolist()
    shown = order[:SHOWN][::-1]  # the lowest accuracy at the top
    most, wrong = matrices[largest].clone().fill_diagonal_(0).max(1)

    places = range(len(shown))
    figure = new_figure(9.6, 1.4 + 0.24 * max(4, len(shown)))
    axes = figure.add_subplot()
    ends = torch.stack([found[shown] for found in top1.values()])
    axes.hlines(places, ends.amin(0), ends.amax(0), color="#DDDDDD", linewidth=1.5)
    for number, count in enumerate(_spread(sorted(top1))):
        style = {"color": COLORS[number], "marker": MARKERS[number]}
        label = f"{count} frame{'s' * (count != 1)}"
        axes.scatter(top1[count][shown], places, s=24, label=label, zorder=3, **style)
    text = {"fontsize": 8, "parse_math": False}
    axes.set_yticks(places, [f"{shorten(classes[i])} ({int(videos[i])})" for i in shown], **text)
    axes.set_xlim(-2, 102)
    axes.set_ylim(-0.7, max(len(shown), 1) - 0.3)
    axes.set_xlabel(f"{name}: top-1 of a class (%)", parse_math=False)
    tidy(axes)
    mistakes = axes.secondary_yaxis("right")
    answers = [f"{shorten(classes[wrong[i]])} ({int(most[i])})" if most[i] else "–" for i in shown]
    mistakes.set_yticks(places, answers, **text)
    mistakes.tick_params(length=0)
    mistakes.spines["right"].set_visible(False)
    note = f"left: class (videos); right: most frequent wrong answer at {largest} frames (videos)"
    if len(shown) < len(used):
        note += f"\n{len(shown)} of {len(used)} classes, those of the lowest accuracy"
    figure.supxlabel(note, fontsize=8.5, color=GRAY)
    add_legend(figure, *axes.get_legend_handles_labels())
    return write_figure(figure, path)


def _spread(counts: Sequence[int]) -> list[int]:
    """The counts, or as many as there are colors: the first, the last and evenly spread ones."""
    chosen = min(len(counts), len(COLORS))
    return [counts[round(i * (len(counts) - 1) / max(1, chosen - 1))] for i in range(chosen)]
