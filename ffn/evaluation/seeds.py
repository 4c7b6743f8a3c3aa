"""Mean and standard deviation of sweeps over the seeds of a run, as Markdown tables.

Runs that differ in their seed alone are named ``<run>.s<seed>``, e.g. ``motion_flexible.s0``.
"""

from __future__ import annotations

import fnmatch
import json
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ffn.evaluation.report import load_table
from ffn.evaluation.results import MultiLabelRow, Row, Sweep

FORMAT = 1  # of the JSON file of a summary
DECIMALS = 4  # of its percentages, of which tables show one; earlier files have two
SEPARATE = "separate networks"
ROWS = {kind.main: kind for kind in (Row, MultiLabelRow)}
Summary = dict[str, Any]  # of one run; see :func:`summarise`
NAME = re.compile(r"(.+)\.s(\d+)(/.*)?")  # run, seed, and the file of the weights


def load_seeds(path: str | Path) -> list[Sweep]:
    """Read the sweeps of a results.json, or those of a summary, of which the main metric is known.

    The run `SEPARATE` of a summary is left out, since it follows from the others.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is neither.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        runs = content["runs"]
    except (ValueError, KeyError, TypeError):
        return load_table(path)  # and its errors
    if content.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {content.get('format')!r}; expected a file of "
            f"ffn summarise, format {FORMAT}"
        )
    try:
        return [sweep for name in runs if name != SEPARATE for sweep in _sweeps(name, runs[name])]
    except (KeyError, TypeError, IndexError) as error:
        expected = "expected a file of ffn summarise"
        raise ValueError(f"{path} is damaged ({error!r}); {expected}") from error


def _sweeps(name: str, run: Summary) -> Iterator[Sweep]:
    """The sweeps of a run, from its summary."""
    kind = ROWS[run["measure"]]
    unknown = dict.fromkeys(kind.measures.values(), math.nan) | {"latency_ms": None, "failed": 0}
    same = ("frames", "subnet", "gmacs", "params", "videos")
    trained, file = run["trained_frames"], run.get("weights") or ""
    for place, seed in enumerate(run.get("seed_numbers", range(run["seeds"]))):
        rows = tuple(
            kind(
                **unknown | {key: row[key] for key in same} | {kind.main: _exact(kind, row, place)}
            )
            for row in run["rows"]
        )
        yield Sweep(
            f"{name}.s{seed}{file and f'/{file}'}",
            tuple(trained) if trained else None,
            run["params"],
            (0, 0),
            rows,
            (),
            run["measured"],
            protocol=run["protocol"],
        )


def _exact(kind: type[Row] | type[MultiLabelRow], row: dict[str, Any], place: int) -> float:
    """The metric of a seed; top-1 is not rounded, since it is that of a whole number of videos."""
    value = row[kind.main][place]
    return 100 * round(value * row["videos"] / 100) / row["videos"] if kind is Row else value


def group_by_run(sweeps: Sequence[Sweep]) -> dict[str, list[Sweep]]:
    """Group sweeps by the name of their run without its seed, in order of appearance.

    Raises:
        ValueError: a name has no seed, a seed occurs twice, or the seeds of a run differ in file of
            the weights, frame counts, protocol, trained counts or number of videos.
    """
    runs: dict[str, dict[int, Sweep]] = {}
    for sweep in sweeps:
        match = NAME.fullmatch(sweep.name)
        if match is None:
            raise ValueError(f"{sweep.name!r} has no seed; expected a name as <run>.s<seed>")
        seeds, seed = runs.setdefault(match[1], {}), int(match[2])
        if seed in seeds:
            raise ValueError(
                f"seed {seed} of {match[1]} occurs twice, as {seeds[seed].name} and {sweep.name}; "
                "give each seed once"
            )
        seeds[seed] = sweep
    for run, seeds in runs.items():
        _check_weights(run, seeds)
        for what, values in {
            "kinds of labels": {type(row) for sweep in seeds.values() for row in sweep.rows},
            "frame counts": {tuple(row.frames for row in sweep.rows) for sweep in seeds.values()},
            "protocols": {sweep.protocol for sweep in seeds.values()},
            "trained counts": {sweep.trained_frames for sweep in seeds.values()},
            "numbers of videos": {row.videos for sweep in seeds.values() for row in sweep.rows},
        }.items():
            if len(values) > 1:
                raise ValueError(f"the seeds of {run} have different {what}; use the same for all")
    return {run: list(seeds.values()) for run, seeds in runs.items()}


def _check_weights(run: str, seeds: Mapping[int, Sweep]) -> None:
    """Check that the names of all seeds end alike, e.g. with /best. Earlier summaries lack it."""
    ends = {NAME.fullmatch(sweep.name)[3]: sweep.name for sweep in seeds.values()}
    ends.pop(None, None)
    if len(ends) > 1:
        raise ValueError(
            f"the seeds of {run} have different weights, {' and '.join(ends.values())}; give the "
            "results of the same file, such as best.pt, of each seed"
        )


def separate_networks(runs: Mapping[str, Sequence[Sweep]], pattern: str) -> list[Sweep]:
    """Networks trained at one frame count each, as one run: each answers at its own count.

    Args:
        runs: see :func:`group_by_run`.
        pattern: glob of the names of these networks, e.g. ``plain_*``.

    Raises:
        ValueError: no run, or one that has several trained counts or is not tested at its own; or
            two have the same count or different numbers of seeds.
    """
    chosen: dict[int, Sequence[Sweep]] = {}
    for name in fnmatch.filter(runs, pattern):
        counts = runs[name][0].trained_frames or ()
        if len(counts) != 1 or counts[0] in chosen:
            raise ValueError(
                f"{name} is trained at {list(counts) or 'unknown frame counts'}; each separate "
                "network has one count, another than those of the others"
            )
        chosen[counts[0]] = runs[name]
    if len({len(seeds) for seeds in chosen.values()}) != 1:
        found = {name: len(runs[name]) for name in fnmatch.filter(runs, pattern)}
        raise ValueError(
            f"separate networks need the same number of seeds; {pattern} has {found or 'no run'}"
        )
    joined = []
    for same in zip(*(chosen[count] for count in sorted(chosen)), strict=True):
        own = [
            [row for row in sweep.rows if row.frames == count]
            for count, sweep in zip(sorted(chosen), same, strict=True)
        ]
        rows = tuple(row for rows in own for row in rows)
        if len(rows) < len(chosen):
            raise ValueError(f"a network of {pattern} is not tested at its trained count")
        joined.append(
            replace(same[0], name=SEPARATE, trained_frames=tuple(sorted(chosen)), rows=rows)
        )
    return joined


def summarise(seeds: Sequence[Sweep]) -> Summary:
    """Mean and sample standard deviation over seeds, per frame count.

    The key ``measure`` names the metric, ``top1`` or ``map``; those of a row start with it, e.g.
    ``top1_mean``.
    """
    rows = [_summary_row(same) for same in zip(*(sweep.rows for sweep in seeds), strict=True)]
    first = seeds[0]
    trained = list(first.trained_frames) if first.trained_frames else None
    names = list(filter(None, (NAME.fullmatch(sweep.name) for sweep in seeds)))
    numbers = [int(match[2]) for match in names]
    return {
        "seeds": len(seeds),
        "seed_numbers": numbers or [*range(len(seeds))],
        "weights": next((match[3][1:] for match in names if match[3]), None),
        "trained_frames": trained,
        "params": first.params,
        "measure": first.rows[0].main,
        "protocol": first.protocol,
        "measured": first.measured,
        "rows": rows,
    }


def mean_sweep(name: str, seeds: Sequence[Sweep], summary: Summary) -> Sweep:
    """The first of several seeds with the mean accuracies, for a figure."""
    rows = [
        replace(row, **{row.main: mean[f"{row.main}_mean"]})
        for row, mean in zip(seeds[0].rows, summary["rows"], strict=True)
    ]
    return replace(seeds[0], name=name, rows=tuple(rows))


def check_same_measure(summary: Mapping[str, Summary]) -> str:
    """The metric of all runs.

    Raises:
        ValueError: some have one label per video, some several.
    """
    found = {run["measure"]: name for name, run in summary.items()}
    if len(found) > 1:
        shown = " and ".join(f"{name} ({measure})" for measure, name in found.items())
        raise ValueError(f"runs have different metrics, {shown}; summarise them one by one")
    return next(iter(found))


def markdown_table(title: str, summary: Mapping[str, Summary]) -> str:
    """A line per run and a column per frame count; trained counts are bold."""
    frames = sorted({row["frames"] for run in summary.values() for row in run["rows"]})
    several = any(run["seeds"] > 1 for run in summary.values())
    spread = "mean ± standard deviation over seeds" if several else "one seed"
    lines = [f"{title}, {spread}; bold: trained at that count.", ""]
    lines.append("| run | seeds | " + " | ".join(map(str, frames)) + " |")
    lines.append("|---" * (len(frames) + 2) + "|")
    for name, run in summary.items():
        trained, measure = run["trained_frames"] or [], run["measure"]
        cells = {row["frames"]: _cell(row, measure, trained) for row in run["rows"]}
        shown = " | ".join(cells.get(count, "") for count in frames)
        lines.append(f"| {name} | {run['seeds']} | {shown} |")
    return "\n".join(lines) + "\n"


def differences(summary: Mapping[str, Summary], against: str) -> str:
    """Top-1 or mAP minus that of the run ``against``, for runs with the same trained counts.

    Raises:
        ValueError: the run has no trained counts, or was not tested at all of them.
    """
    counts = summary[against]["trained_frames"] or []
    base = _means(summary[against])
    if not counts or not set(counts) <= set(base):
        raise ValueError(
            f"{against} is trained at {counts or 'unknown frame counts'} and tested at "
            f"{list(base)}; a difference needs tests at the trained counts"
        )
    lines = [f"Difference from `{against}` at the trained counts, in points.", ""]
    lines.append("| run | " + " | ".join(map(str, counts)) + " |")
    lines.append("|---" * (len(counts) + 1) + "|")
    for name, run in summary.items():
        if name != against and run["trained_frames"] == counts:
            mean = _means(run)
            cells = (f"{mean[t] - base[t]:+.1f}" if t in mean else "" for t in counts)
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _summary_row(same: Sequence[Row]) -> dict[str, Any]:
    scores, name = [row.score for row in same], same[0].main
    return {
        "frames": same[0].frames,
        "subnet": same[0].subnet,
        f"{name}_mean": round(statistics.mean(scores), DECIMALS),
        f"{name}_std": round(statistics.stdev(scores), DECIMALS) if len(scores) > 1 else None,
        name: [round(value, DECIMALS) for value in scores],
        "gmacs": same[0].gmacs,
        "params": same[0].params,
        "videos": same[0].videos,
    }


def _means(run: Summary) -> dict[int, float]:
    return {row["frames"]: row[f"{run['measure']}_mean"] for row in run["rows"]}


def _cell(row: dict[str, Any], measure: str, trained: Sequence[int]) -> str:
    mean, deviation = row[f"{measure}_mean"], row[f"{measure}_std"]
    spread = "" if deviation is None else f" ± {deviation:.1f}"
    text = f"{mean:.1f}{spread}"
    return f"**{text}**" if row["frames"] in trained else text
