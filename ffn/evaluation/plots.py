"""Figure of a sweep: accuracy against frames and against cost, one line per network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffn.evaluation.results import LONG_TITLES, Sweep
from ffn.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The palette of Okabe and Ito, distinct for color-blind readers; markers differ as well.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GRAY = "#555555"


def save_figure(sweeps: Sequence[Sweep], path: str | Path) -> Path:
    """Draw top-1 accuracy against frames, and against multiply-accumulates of a video, into a file.

    With several labels per video, mean average precision takes the place of the accuracy. Filled
    markers show the frame counts of training. No display is needed.

    Args:
        sweeps: the networks, in the order of the legend.
        path: ``.png``, or any format of matplotlib.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: matplotlib does not support the format.
    """
    figure = new_figure(9.6, 4.4)
    from matplotlib.ticker import LogLocator, NullLocator

    by_frames, by_cost = figure.subplots(1, 2, sharey=True)
    for order, sweep in enumerate(sweeps):
        repeated = order // len(COLORS)  # a color has another marker when it comes again
        style = {
            "color": COLORS[order % len(COLORS)],
            "marker": MARKERS[(order + repeated) % len(MARKERS)],
            "zorder": 3 + len(sweeps) - order,
        }
        _draw(by_frames, sweep, [row.frames for row in sweep.rows], style)
        _draw(by_cost, sweep, [sweep.views * row.gmacs for row in sweep.rows], style)

    by_frames.set_xlabel("frames of the clip")
    main = sweeps[0].rows[0].main
    by_frames.set_ylabel(f"{LONG_TITLES.get(main, main)} (%)")
    counts = sorted({row.frames for sweep in sweeps for row in sweep.rows})
    by_frames.set_xticks([t for t in counts if len(counts) <= 16 or t % 2 == 0])
    several = any(sweep.views > 1 for sweep in sweeps)
    by_cost.set_xlabel(f"multiply-accumulates per {'video' if several else 'clip'} (G)")
    by_cost.set_xscale("log")
    by_cost.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    by_cost.xaxis.set_major_formatter("{x:g}")
    by_cost.xaxis.set_minor_locator(NullLocator())
    for axes in (by_frames, by_cost):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(GRAY)
        axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(colors=GRAY, labelcolor="black")

    longest = max(len(sweep.name) for sweep in sweeps)
    columns = max(1, min(4, len(sweeps), 110 // (longest + 8)))  # as many as fit into the width
    lines, names = by_frames.get_legend_handles_labels()
    figure.legend(lines, names, loc="outside upper center", ncols=columns, frameon=False)
    figure.supxlabel("filled: trained at this number of frames", fontsize=8.5, color=GRAY)
    return write_figure(figure, path)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of the given size in inches that needs no display.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "the figure needs matplotlib: pip install 'frame-flexible[plot]'"
        ) from error
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def write_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure atomically, in the format of the file's suffix.

    Raises:
        ValueError: there is no suffix, or matplotlib does not support the format.
    """
    path = Path(path)
    if not path.suffix:
        raise ValueError(f"{path} has no suffix; add one, e.g. .png, .svg or .pdf")
    with atomic_write(path) as file:
        figure.savefig(file, format=path.suffix[1:])
    return path


def _draw(axes: Axes, sweep: Sweep, x: list[float], style: dict[str, Any]) -> None:
    scores = [row.score for row in sweep.rows]
    axes.plot(
        x, scores, label=sweep.name, linewidth=1.8, markersize=5, markerfacecolor="white", **style
    )
    trained = [i for i, row in enumerate(sweep.rows) if row.frames in (sweep.trained_frames or ())]
    axes.plot(
        [x[i] for i in trained], [scores[i] for i in trained],
        linestyle="none", markersize=8, markeredgecolor="white", **style,
    )  # fmt: skip
