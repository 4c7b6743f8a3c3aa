"""Compare cross-validated networks on the same folds: tables, paired differences, figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffn.evaluation.cross_validation import (
    MEASURES,
    CrossValidation,
    as_percent,
    differences,
    summarise_cross_validation,
)
from ffn.evaluation.cross_validation_table import cell, description, warnings_of
from ffn.evaluation.plots import (
    COLORS,
    GRAY,
    MARKERS,
    add_legend,
    new_figure,
    tidy,
    write_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {
    "top1": "Top-1 accuracy (%)",
    "top1_shuffled": "Top-1 accuracy (%) of clips with shuffled frames",
    "class_groups": "Accuracy (%) within class groups",
    "class_groups_shuffled": "Accuracy (%) within class groups of clips with shuffled frames",
}


def compare(networks: Sequence[CrossValidation]) -> dict[str, Any]:
    """Accuracies of networks, and paired differences of the others from the first one.

    A difference is in points, of the mean over all clips and seeds. Each resample of the bootstrap
    takes the same groups for both networks. Networks may have different numbers of seeds.

    Returns:
        Plain values: ``networks``, the summary of each by its name, and ``differences``: per
        measure, name and frame count ``mean`` and ``interval``.

    Raises:
        ValueError: the networks were not tested on the same folds of the same clips, or share no
            frame count.
    """
    first, *others = networks
    for other in others:
        _check_same(first, other)
    measures = [m for m in MEASURES if all(m in network.measures for network in networks)]
    if len({network.class_groups for network in networks}) > 1:
        measures = [m for m in measures if not m.startswith("class_groups")]
    found: dict[str, Any] = {
        "networks": {x.name: summarise_cross_validation(x) for x in networks},
        "against": first.name,
        "differences": {measure: {} for measure in measures},
    }
    for measure in measures:
        for other in others:
            frames = [t for t in first.frames if t in other.frames]
            paired = differences(other, first, measure, measure, frames)
            found["differences"][measure][other.name] = [
                {"frames": t, **as_percent(interval)}
                for t, interval in zip(frames, paired, strict=True)
            ]
    return found


def comparison_table(comparison: Mapping[str, Any]) -> str:
    """Markdown: per measure a line per network, and the differences from the first one."""
    networks, against = comparison["networks"], comparison["against"]
    first = networks[against]
    parts = [description(first) + " Bold: trained at that count."]
    texts = [text for network in networks.values() for text in warnings_of(network)]
    parts += [f"Warning: {text}." for text in dict.fromkeys(texts)]
    frames = sorted({row["frames"] for network in networks.values() for row in network["rows"]})
    for measure, others in comparison["differences"].items():
        lines = [f"{TITLES[measure]}, mean over seeds, interval over groups.", ""]
        lines += _head(["network", "seeds"], frames)
        for name, network in networks.items():
            cells = {row["frames"]: cell(row[measure]) for row in network["rows"]}
            lines.append(_line([name, str(len(network["seeds"]))], cells, frames, network))
        parts.append("\n".join(lines))
        if others:
            lines = [
                f"Difference from `{against}` in points, paired over clips; above 0: better than "
                f"`{against}`.",
                "",
                *_head(["network"], frames),
            ]
            for name, rows in others.items():
                cells = {row["frames"]: cell(row, "+") for row in rows}
                lines.append(_line([name], cells, frames, networks[name]))
            parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def save_comparison_figure(comparison: Mapping[str, Any], path: str | Path) -> Path:
    """Draw top-1 accuracy and the differences from the first network, with intervals, into a file.

    Filled markers show the frame counts of training. No display is needed.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: matplotlib does not support the format.
    """
    networks, against = comparison["networks"], comparison["against"]
    others = comparison["differences"]["top1"]
    figure = new_figure(9.6 if others else 5.6, 4.4)
    panels = figure.subplots(1, 2 if others else 1, squeeze=False)[0]
    frames = sorted({row["frames"] for network in networks.values() for row in network["rows"]})
    styles = zip(networks, cycle(COLORS), cycle(MARKERS), strict=False)
    for order, (name, color, marker) in enumerate(styles):
        style = {"color": color, "marker": marker, "zorder": 3 + len(networks) - order}
        shift = 0.4 * ((order + 0.5) / len(networks) - 0.5)
        rows = networks[name]["rows"]
        curves = [{row["frames"]: row["top1"] for row in rows}]
        if name in others:
            curves.append({row["frames"]: row for row in others[name]})
        for axes, blocks in zip(panels, curves, strict=False):
            x = {count: frames.index(count) + shift for count in blocks}
            _draw(axes, name, x, blocks, networks[name]["trained_frames"], style)

    majority = networks[against]["majority"]
    panels[0].axhline(majority, color=GRAY, linewidth=1, linestyle="--")
    panels[0].annotate(
        "largest class", (1, majority), xycoords=("axes fraction", "data"), xytext=(0, 3),
        textcoords="offset points", ha="right", fontsize=8.5, color=GRAY,
    )  # fmt: skip
    panels[0].set_ylabel("top-1 accuracy (%)")
    if others:
        panels[1].axhline(0, color=COLORS[0], linewidth=1.5)
        panels[1].set_ylabel(f"difference from {against} (points)")
    for axes in panels:
        axes.set_xticks(range(len(frames)), map(str, frames))
        axes.set_xlabel("frames of the clip")
        tidy(axes)
    add_legend(figure, *panels[0].get_legend_handles_labels())
    level = networks[against]["bootstrap"]["level"]
    note = f"filled: trained at this number of frames; bars: {100 * level:.0f} % intervals"
    figure.supxlabel(note, fontsize=8.5, color=GRAY)
    return write_figure(figure, path)


def _draw(
    axes: Axes,
    name: str,
    x: Mapping[int, float],
    blocks: Mapping[int, Mapping[str, Any]],
    trained: Sequence[int],
    style: Mapping[str, Any],
) -> None:
    """One network: a line, bars for the intervals, filled markers at its trained counts."""
    mean = {count: block["mean"] for count, block in blocks.items()}
    below = [mean[count] - block["interval"][0] for count, block in blocks.items()]
    above = [block["interval"][1] - mean[count] for count, block in blocks.items()]
    axes.errorbar(
        list(x.values()), list(mean.values()), [below, above], label=name, linewidth=1.5,
        elinewidth=1.1, capsize=2.5, markersize=5, markerfacecolor="white", **style,
    )  # fmt: skip
    shown = [count for count in mean if count in trained]
    axes.plot(
        [x[count] for count in shown], [mean[count] for count in shown], linestyle="none",
        markersize=8, markeredgecolor="white", **{**style, "zorder": style["zorder"] + 0.5},
    )  # fmt: skip


def _check_same(first: CrossValidation, other: CrossValidation) -> None:
    if not set(first.frames) & set(other.frames):
        raise ValueError(
            f"{first.name} and {other.name} share no frame count: {first.frames} and "
            f"{other.frames}; test both at the same --frames"
        )
    if first.fingerprint == other.fingerprint:
        return
    sizes = [f"{len(x.paths)} clips, {len(set(x.folds))} folds" for x in (first, other)]
    parts = {
        "class names": first.classes == other.classes,
        "clips": first.paths == other.paths,
        "labels": first.label.tolist() == other.label.tolist(),
        "groups": first.groups == other.groups,
        "folds": first.folds == other.folds,
    }
    different = [name for name, same in parts.items() if not same] or ["times of the clips"]
    raise ValueError(
        f"{first.name} and {other.name} have different {', '.join(different)} ({sizes[0]}; "
        f"{sizes[1]}); a paired comparison needs the same --annotations, --where, --group, "
        "--folds and --fold-seed"
    )


def _head(columns: Sequence[str], frames: Sequence[int]) -> list[str]:
    names = [*columns, *map(str, frames)]
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def _line(
    first: Sequence[str],
    cells: Mapping[int, str],
    frames: Sequence[int],
    network: Mapping[str, Any],
) -> str:
    bold = network["trained_frames"]
    shown = (cells.get(t, "") for t in frames)
    marked = (f"**{x}**" if x and t in bold else x for t, x in zip(frames, shown, strict=True))
    return f"| {' | '.join([*first, *marked])} |"
