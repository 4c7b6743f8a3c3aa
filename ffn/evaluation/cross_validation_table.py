"""Console tables of a cross-validation, and the sentences that explain them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ffn.evaluation.cross_validation import MEASURES

FEW_GROUPS = 20  # intervals of fewer groups come with a warning
COLUMNS = {
    "top1_shuffled": "shuffled frames",
    "class_groups": "class groups",
    "class_groups_shuffled": "class groups, shuffled",
}


def print_cross_validation(
    name: str, summary: Mapping[str, Any], console: Console | None = None
) -> None:
    """Print the tables of a cross-validation; rows of trained counts are bold.

    Args:
        name: of the network.
        summary: see :func:`~ffn.evaluation.cross_validation.summarise_cross_validation`.
        console: the terminal by default.
    """
    console = console or Console()
    console.print(_main_table(name, summary))
    if len(_measures(summary)) > 1:
        console.print(_further_table(summary))
    console.print(description(summary), markup=False, highlight=False)
    for text in warnings_of(summary):
        console.print(f"warning: {text}", style="yellow", markup=False, highlight=False)


def warnings_of(summary: Mapping[str, Any]) -> list[str]:
    """What a reader of the intervals must know: few groups, unreadable clips."""
    texts = []
    if summary["groups"] < FEW_GROUPS:
        texts.append(
            f"{summary['groups']} groups: with fewer than {FEW_GROUPS}, the intervals are too "
            "narrow; add clips of other groups"
        )
    if summary["unreadable"]:
        bad = summary["unreadable"]
        texts.append(
            f"{len(bad)} clips could not be decoded and count as wrong, the first is {bad[0]}"
        )
    return texts


def description(summary: Mapping[str, Any]) -> str:
    """One sentence about the clips, and one about the intervals."""
    drawn = summary["bootstrap"]
    text = (
        f"{summary['clips']} clips of {sum(n > 0 for n in summary['classes'].values())} classes in "
        f"{summary['groups']} groups, {len(summary['fold_clips'])} folds; the largest class has "
        f"{summary['majority']:.1f} %. Intervals: {100 * drawn['level']:.0f} %, bootstrap over "
        f"groups, {drawn['resamples']} resamples, seed {drawn['seed']}"
    )
    if "class_groups" in summary:
        text += (
            f". Within class groups: {summary['class_groups']['clips']} clips; the largest class "
            f"of each group has {summary['class_groups']['majority']:.1f} %"
        )
    return f"{text}."


def cell(block: Mapping[str, Any], sign: str = "") -> str:
    """``45.1 [38.2, 51.7]``; with sign "+" differences have a sign."""
    low, high = block["interval"]
    return f"{block['mean']:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def _measures(summary: Mapping[str, Any]) -> list[str]:
    return [measure for measure in MEASURES if measure in summary["rows"][0]]


def _main_table(name: str, summary: Mapping[str, Any]) -> Table:
    several = len(summary["seeds"]) > 1
    columns = ["frames", "top-1 (%)", "per class", "folds min-max"]
    columns += ["seeds min-max"] * several
    table = _empty_table(name, columns)
    for row in summary["rows"]:
        top1 = row["top1"]
        folds = [value for value in top1["per_fold"] if value is not None]
        cells = [cell(top1), f"{top1['mean_class']:.1f}", f"{min(folds):.1f}-{max(folds):.1f}"]
        if several:
            cells.append(f"{min(top1['per_seed']):.1f}-{max(top1['per_seed']):.1f}")
        table.add_row(str(row["frames"]), *cells, style=_style(row, summary))
    return table


def _further_table(summary: Mapping[str, Any]) -> Table:
    measures = _measures(summary)[1:]
    table = _empty_table("", ["frames", *(COLUMNS[measure] for measure in measures)])
    for row in summary["rows"]:
        cells = (cell(row[measure]) for measure in measures)
        table.add_row(str(row["frames"]), *cells, style=_style(row, summary))
    return table


def _empty_table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=escape(title) or None)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _style(row: Mapping[str, Any], summary: Mapping[str, Any]) -> str | None:
    return "bold" if row["frames"] in summary["trained_frames"] else None
