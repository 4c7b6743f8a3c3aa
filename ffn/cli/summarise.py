"""``tools/summarise.py RESULTS… --output STEM``: mean and spread over seeds, table and figure.

Runs that differ in their seed alone are named ``<run>.s<seed>``, as runs/motion_flexible.s0.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

FORMAT = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, read, average, write; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="summarise.py",
        description="Average the results.json files of tools/test.py over the seeds of each run.",
    )
    parser.add_argument("results", nargs="+", help="results.json files of tools/test.py")
    parser.add_argument("--output", required=True, help="stem of the .json, .md and .png written")
    parser.add_argument("--title", default="Top-1 accuracy (%)", help="first line of the table")
    parser.add_argument(
        "--against",
        metavar="RUN",
        help="a second table: how far runs trained alike are from it",
    )
    parser.add_argument("--figure", nargs="*", metavar="RUN", help="runs in the figure")
    given = parser.parse_args(arguments)

    from ffn.evaluation import load_table, save_figure

    try:
        sweeps = [sweep for path in given.results for sweep in load_table(path)]
        runs = group_by_run(sweeps)
        named = {*(given.figure or ()), *filter(None, [given.against])}
        unknown = sorted(named - set(runs))
        if unknown:
            raise ValueError(f"no run {unknown[0]!r}; there are {', '.join(runs)}")
    except (ValueError, FileNotFoundError) as error:
        print(f"summarise.py: {error}", file=sys.stderr)
        return 2
    stem = Path(given.output)
    stem.parent.mkdir(parents=True, exist_ok=True)
    summary = {run: summarise(seeds) for run, seeds in runs.items()}
    content = {"format": FORMAT, "title": given.title, "runs": summary}
    stem.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    text = markdown(given.title, summary)
    if given.against:
        text += "\n" + differences(summary, given.against)
    stem.with_suffix(".md").write_text(text)
    shown = given.figure or list(runs)
    save_figure(
        [_mean_sweep(run, runs[run], summary[run]) for run in shown], stem.with_suffix(".png")
    )
    print(stem.with_suffix(".md").read_text())
    for suffix in (".json", ".md", ".png"):
        print(stem.with_suffix(suffix))
    return 0


def group_by_run(sweeps: Sequence[Any]) -> dict[str, list[Any]]:
    """Sweeps by the name of their run without its seed, in order of appearance.

    Raises:
        ValueError: a name without seed, or frame counts or protocols that differ between the seeds
            of a run.
    """
    runs: dict[str, list[Any]] = {}
    for sweep in sweeps:
        match = re.fullmatch(r"(.+)\.s\d+(/.*)?", sweep.name)
        if match is None:
            raise ValueError(f"{sweep.name!r} names no seed; runs are called <run>.s<seed>")
        runs.setdefault(match[1], []).append(sweep)
    for run, seeds in runs.items():
        if len({tuple(row.frames for row in sweep.rows) for sweep in seeds}) > 1:
            raise ValueError(f"the seeds of {run} were tested at different frame counts")
        if len({sweep.protocol for sweep in seeds}) > 1:
            raise ValueError(f"the seeds of {run} were tested by different protocols")
    return runs


def summarise(seeds: Sequence[Any]) -> dict[str, Any]:
    """Mean and sample standard deviation over seeds, per frame count."""
    rows = []
    for same in zip(*(sweep.rows for sweep in seeds), strict=True):
        top1 = [row.top1 for row in same]
        rows.append(
            {
                "frames": same[0].frames,
                "subnet": same[0].subnet,
                "top1_mean": round(statistics.mean(top1), 2),
                "top1_std": round(statistics.stdev(top1), 2) if len(top1) > 1 else None,
                "top1": [round(value, 2) for value in top1],
                "gmacs": same[0].gmacs,
                "params": same[0].params,
                "videos": same[0].videos,
            }
        )
    first = seeds[0]
    trained = list(first.trained_frames) if first.trained_frames else None
    return {
        "seeds": len(seeds),
        "trained_frames": trained,
        "params": first.params,
        "protocol": first.protocol,
        "measured": first.measured,
        "rows": rows,
    }


def markdown(title: str, summary: dict[str, dict[str, Any]]) -> str:
    """One line per run, one column per frame count; bold where the run was trained."""
    frames = sorted({row["frames"] for run in summary.values() for row in run["rows"]})
    several = any(run["seeds"] > 1 for run in summary.values())
    spread = "mean ± standard deviation over seeds" if several else "one seed"
    lines = [f"{title}, {spread}; bold: trained at that count.", ""]
    lines.append("| run | seeds | " + " | ".join(map(str, frames)) + " |")
    lines.append("|---" * (len(frames) + 2) + "|")
    for name, run in summary.items():
        cells = {row["frames"]: _cell(row, run["trained_frames"] or []) for row in run["rows"]}
        shown = " | ".join(cells.get(count, "") for count in frames)
        lines.append(f"| {name} | {run['seeds']} | {shown} |")
    return "\n".join(lines) + "\n"


def differences(summary: dict[str, dict[str, Any]], against: str) -> str:
    """Top-1 of a run less that of `against`, at the counts that both were trained at."""
    counts = summary[against]["trained_frames"] or []
    base = _top1(summary[against])
    lines = [f"Difference from `{against}` at the trained counts, in points.", ""]
    lines.append("| run | " + " | ".join(map(str, counts)) + " |")
    lines.append("|---" * (len(counts) + 1) + "|")
    for name, run in summary.items():
        if name != against and run["trained_frames"] == counts:
            top1 = _top1(run)
            shown = " | ".join(f"{top1[t] - base[t]:+.1f}" for t in counts)
            lines.append(f"| {name} | {shown} |")
    return "\n".join(lines) + "\n"


def _top1(run: dict[str, Any]) -> dict[int, float]:
    return {row["frames"]: row["top1_mean"] for row in run["rows"]}


def _cell(row: dict[str, Any], trained: Sequence[int]) -> str:
    spread = "" if row["top1_std"] is None else f" ± {row['top1_std']:.1f}"
    text = f"{row['top1_mean']:.1f}{spread}"
    return f"**{text}**" if row["frames"] in trained else text


def _mean_sweep(name: str, seeds: Sequence[Any], summary: dict[str, Any]) -> Any:
    rows = [
        replace(row, top1=mean["top1_mean"])
        for row, mean in zip(seeds[0].rows, summary["rows"], strict=True)
    ]
    return replace(seeds[0], name=name, rows=tuple(rows))
