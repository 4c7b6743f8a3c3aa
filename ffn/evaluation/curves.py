"""Figure of training logs: a panel per quantity, a color per run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffn.evaluation.plots import COLORS, GRAY, add_legend, new_figure, tidy, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Run = Sequence[Mapping[str, Any]]

# Keys of the default figure; each group starts a row.
GROUPS = (
    ("train/loss", "train/loss/*"),
    ("*/top1/*", "val/map/*", "val/mean"),
    ("train/lr", "train/grad_norm", "train/videos_per_s", "train/data_wait"),
)
TITLES = {
    "mean": "mean of trained counts, %",
    "lr": "learning rate",
    "grad_norm": "gradient norm",
    "videos_per_s": "videos per second",
    "data_wait": "share of time waiting for data",
    "memory_mib": "memory (MiB)",
    "skipped": "unreadable videos skipped per epoch",
    "failed": "unreadable validation videos",
}
COLUMNS = 4
MARKED = 15  # maximum number of validations drawn with markers


def save_curves(
    runs: Mapping[str, Run], path: str | Path, keys: Sequence[str] | None = None
) -> Path:
    """Draw the logs of runs over their optimizer steps into a file.

    A quantity that is logged in training and in validation has one panel: training dashed,
    validation solid. No display is needed.

    Args:
        runs: name in the legend -> lines of the log, from ``read_log``.
        path: ``.png``, or any format of matplotlib.
        keys: keys of the logs, with ``*`` as a wildcard, e.g. ``val/top1/*``. None draws losses,
            accuracies, learning rate, gradient norm, speed and data wait.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: no run has such a key, or matplotlib does not support the format.
    """
    panels = _layout(_groups(keys, _numbers(runs.values())))
    rows, columns = (1 + max(cell[axis] for cell in panels) for axis in range(2))
    figure = new_figure(max(6.4, 3.3 * columns), 0.9 + 2.3 * rows)
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
    colors = _colors(len(runs))
    colored = list(zip(runs.values(), colors, strict=True))
    for cell, axes in [((i, j), grid[i, j]) for i in range(rows) for j in range(columns)]:
        if cell not in panels:
            axes.set_visible(False)
            continue
        _draw(axes, colored, *panels[cell])
        if cell[0] == max(row for row, column in panels if column == cell[1]):
            axes.set_xlabel("optimizer steps")
            axes.tick_params(labelbottom=True)
    _share_scale([grid[cell] for cell, (quantity, _) in panels.items() if _is_accuracy(quantity)])
    _add_legend(figure, list(runs), colors)
    if any(len(found) > 1 for _, found in panels.values()):
        note = "training dashed, validation solid, where a panel has both"
        figure.supxlabel(note, fontsize=9, color=GRAY)
    return write_figure(figure, path)


def _numbers(runs: Iterable[Run]) -> list[str]:
    """The keys of all runs in order of appearance, with ascending frame counts."""
    keys = dict.fromkeys(key for run in runs for entry in run for key in entry if "/" in key)
    counts = {key: re.search(r"[/_](\d+)$", key) for key in keys}
    return sorted(keys, key=lambda key: int(counts[key][1]) if counts[key] else 0)


def _groups(given: Sequence[str] | None, there: Sequence[str]) -> list[dict[str, list[str]]]:
    """Per group: quantity -> its keys. A quantity is a key without "train/" or "val/"."""
    groups = []
    for patterns in GROUPS if given is None else (given,):
        group: dict[str, list[str]] = {}
        for pattern in patterns:
            found = [key for key in there if fnmatchcase(key, pattern)]
            if not found and given is not None:
                raise ValueError(f"no run has a key {pattern!r}; the keys are {', '.join(there)}")
            for key in found:
                keys = group.setdefault(key.partition("/")[2], [])
                keys += [] if key in keys else [key]
        groups.append(group)
    if not any(groups):
        raise ValueError(
            f"the logs have none of the default keys; choose from {', '.join(there)} with --keys"
        )
    return groups


def _layout(groups: list[dict[str, list[str]]]) -> dict[tuple[int, int], tuple[str, list[str]]]:
    """(row, column) -> a quantity and its keys; the rows of a group have similar lengths."""
    panels, row = {}, 0
    for group in filter(None, groups):
        columns = math.ceil(len(group) / math.ceil(len(group) / COLUMNS))
        for index, item in enumerate(group.items()):
            panels[row + index // columns, index % columns] = item
        row += math.ceil(len(group) / columns)
    return panels


def _colors(number: int) -> Sequence[Any]:
    if number <= len(COLORS):
        return COLORS[:number]
    from matplotlib import colormaps

    return colormaps["turbo"].resampled(number)(range(number))


def _draw(axes: Axes, runs: list[tuple[Run, Any]], quantity: str, keys: list[str]) -> None:
    for order, (run, color) in enumerate(runs):
        # Learning rates often coincide: earlier runs are wider, so that all remain visible.
        width = 1.6 + (1.2 * (len(runs) - 1 - order) if quantity == "lr" else 0)
        for key in keys:
            points = [(entry["step"], entry[key]) for entry in run if key in entry]
            style: dict[str, Any] = {"color": color, "linewidth": width}
            if len(points) == 1 or (key.startswith("val/") and len(points) <= MARKED):
                style |= {"marker": "o", "markersize": 3.5}
            if len(keys) > 1 and key.startswith("train/"):
                style |= {"linestyle": (0, (3, 1.5)), "linewidth": 1, "alpha": 0.8}
            axes.plot([step for step, _ in points], [value for _, value in points], **style)
    title = re.sub(r"^top1/(\d+)$", r"top-1 % at \1 frames", quantity)
    title = re.sub(r"^map/(\d+)$", r"mAP % at \1 frames", title)
    axes.set_title(TITLES.get(quantity, title), fontsize=10)
    tidy(axes)
    values = [y for line in axes.get_lines() for y in line.get_ydata() if math.isfinite(y)]
    if quantity == "data_wait":
        axes.set_ylim(0, 1)
    elif quantity == "grad_norm" and values and 0 < 30 * min(values) < max(values):
        axes.set_yscale("log")
    elif quantity in ("videos_per_s", "lr"):
        axes.set_ylim(bottom=0)


def _is_accuracy(quantity: str) -> bool:
    return quantity == "mean" or quantity.startswith(("top1/", "map/"))


def _share_scale(panels: list[Axes]) -> None:
    """Give all panels one vertical scale, to compare frame counts."""
    top = max((axes.get_ylim()[1] for axes in panels), default=None)
    for axes in panels:
        axes.set_ylim(0, min(top, 102))


def _add_legend(figure: Figure, names: Sequence[str], colors: Sequence[Any]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=color, label=name, linewidth=2.5)
        for name, color in zip(names, colors, strict=True)
    ]
    add_legend(figure, handles, names)
