"""Comparisons as tables on the console and as a JSON file."""

from __future__ import annotations

import datetime
import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ffn.benchmarks.timing import Comparison, Ratio, Variant, quartiles
from ffn.evaluation import describe_device
from ffn.files import write_text

FORMAT = 1  # of the JSON file
LISTED = ("model", "frames", "batch_size")  # options that may differ when a benchmark is resumed
TIMED = ("date", "product_gflops")  # what differs in every run
MEMORY = {
    "cpu": "peak of torch's CPU allocator, from torch.profiler; without oneDNN's own buffers",
    "cuda": "peak of torch's CUDA allocator, torch.cuda.max_memory_allocated",
}
ONNX_MEMORY = "growth of the resident memory of a process, with ONNX Runtime's own buffers"


def describe_run(device: torch.device) -> dict[str, Any]:
    """Date, device, number of CPU threads and torch version of a benchmark."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": describe_device(device),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }


def print_comparison(comparison: Comparison, *, items: str, console: Console | None = None) -> None:
    """Print a table of variants and a table of ratios.

    Args:
        comparison: the results.
        items: the unit of the rates, e.g. "clips".
        console: the terminal by default.
    """
    console = console or Console()
    console.print(_variant_table(comparison, items))
    console.print(_ratio_table(comparison))


def save_comparisons(
    comparisons: Sequence[Comparison],
    path: str | Path,
    *,
    measured: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Write comparisons to a JSON file; an existing file is replaced.

    Args:
        comparisons: the results.
        path: the file; its folder is created if it is missing.
        measured: see :func:`describe_run`.
        options: of the command; paths are written as text.
    """
    content = {
        "format": FORMAT,
        "measured": dict(measured),
        "options": dict(options),
        "comparisons": [asdict(comparison) for comparison in comparisons],
    }
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(content, indent=2, default=str) + "\n")


def load_comparisons(
    path: str | Path, *, measured: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[list[Comparison], dict[str, Any]]:
    """Read the comparisons of an interrupted benchmark, to continue it.

    Args:
        path: a file of `save_comparisons`.
        measured: see :func:`describe_run`; equal to that of the file, except for the date and
            measured speeds.
        options: of the command; equal to those of the file, except for the models, frame counts and
            batch sizes.

    Returns:
        The comparisons, and the options with the models, frame counts and batch sizes of both.

    Raises:
        ValueError: the file is not of a benchmark, or of another machine or other options.
        OSError: the file cannot be read.
    """
    try:
        content = json.loads(Path(path).read_text())
        before = content["measured"], content["options"]
        comparisons = [_read_comparison(entry) for entry in content["comparisons"]]
        grown = {key: [*before[1][key], *options[key]] for key in LISTED}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a file of this benchmark ({error})") from error
    for old, new, free in zip(before, (measured, options), (TIMED, LISTED), strict=True):
        for key in sorted((old.keys() | new.keys()) - {*free}):
            if old.get(key) != new.get(key):
                raise ValueError(
                    f"{path} has {key} {old.get(key)!r}, and this benchmark {new.get(key)!r}; "
                    "choose another --output, or --overwrite in place of --resume"
                )
    return comparisons, {**options, **{k: list(dict.fromkeys(v)) for k, v in grown.items()}}


def _read_comparison(entry: dict[str, Any]) -> Comparison:
    variants = (Variant(**v | {"seconds": tuple(v["seconds"])}) for v in entry["variants"])
    ratios = (Ratio(**ratio) for ratio in entry["ratios"])
    return Comparison(entry["title"], tuple(variants), tuple(ratios), entry.get("macs"))


def markdown_table(comparisons: Sequence[Comparison], measured: Mapping[str, Any]) -> str:
    """A Markdown table: the time of the first variant, and that of the others relative to it.

    The rows are in the order of their titles, "8 frames" before "16 frames". If the operations are
    counted, the first variant has its GFLOP/s too.

    Args:
        comparisons: the results; their first variant is the reference.
        measured: see :func:`describe_run`.
    """
    first = comparisons[0].variants[0].name
    names = list(dict.fromkeys(v.name for c in comparisons for v in c.variants if v.name != first))
    lines = [
        f"| | {first} | {' | '.join(names)} |",
        f"|---{'|---' * (1 + len(names))}|",
    ]
    for comparison in sorted(comparisons, key=_natural_order):
        variants = {variant.name: variant for variant in comparison.variants}
        slowest = statistics.median(variants[first].seconds)
        relative = {r.name: 1 / r.speed for r in comparison.ratios if r.over == first}
        cells = [f"{relative[name]:.2f}" if name in relative else "" for name in names]
        time = f"{slowest * 1e3:.{int(slowest < 0.01)}f} ms" if slowest < 10 else f"{slowest:.1f} s"
        if comparison.macs:
            time += f", {2 * comparison.macs / slowest / 1e9:.0f} GFLOP/s"
        lines.append(f"| {comparison.title} | {time} | {' | '.join(cells)} |")
    where = f"{measured['device']}, torch {measured['torch']}, {measured['date'][:10]}"
    text = f"Time of a forward pass with random weights, relative to the network {first}; {where}."
    if speeds := measured.get("product_gflops"):
        shown = " and ".join(f"{speed:.0f} GFLOP/s in {name}" for name, speed in speeds.items())
        size = measured.get("product_size", 2048)
        text += f" A product of two matrices of {size} x {size} has {shown} there."
    return "\n".join([text, "", *lines]) + "\n"


def markdown_ratios(comparisons: Sequence[Comparison], measured: Mapping[str, Any]) -> str:
    """A Markdown table with a row per ratio: time and memory of the first variant to the other.

    Args:
        comparisons: the results.
        measured: see :func:`describe_run`.
    """
    text = "Time and memory of the form that networks of ffn run, relative to another"
    return _markdown_rows(comparisons, measured, text, lambda title, _: title)


def markdown_versions(comparisons: Sequence[Comparison], measured: Mapping[str, Any]) -> str:
    """A Markdown table with a row per ratio: time and memory of this version to an earlier one.

    Args:
        comparisons: of :func:`ffn.benchmarks.versions.compare_versions`.
        measured: see :func:`describe_run`, with the commits "before" and "now".
    """
    trees = f"now {measured['now']}, before {measured['before']}"
    text = f"Time and memory relative to an earlier version; {trees}"
    return _markdown_rows(comparisons, measured, text, lambda title, name: f"{title}: {name}")


def _markdown_rows(
    comparisons: Sequence[Comparison],
    measured: Mapping[str, Any],
    text: str,
    row_name: Callable[[str, str], str],
) -> str:
    lines = ["| | compared with | time | quartiles | memory |", "|---|---|---|---|---|"]
    for comparison in comparisons:
        for r in comparison.ratios:
            memory = "" if r.memory is None else f"{r.memory:.2f}"
            quarters = f"{1 / r.high:.2f} to {1 / r.low:.2f}"
            name = row_name(comparison.title, r.name)
            cells = (name, r.over, f"{1 / r.speed:.2f}", quarters, memory)
            lines.append(f"| {' | '.join(cells)} |")
    where = f"{measured['device']}, torch {measured['torch']}, {measured['date'][:10]}"
    return "\n".join([f"{text}; {where}.", "", *lines]) + "\n"


def _natural_order(comparison: Comparison) -> list[str | int]:
    parts = re.split(r"(\d+)", comparison.title)
    return [int(part) if part.isdigit() else part for part in parts]


def _variant_table(comparison: Comparison, items: str) -> Table:
    measures_memory = any(v.peak_bytes is not None for v in comparison.variants)
    table = Table(title=escape(comparison.title))
    table.add_column("variant")
    for column in (f"{items}/s", "ms", "25 %", "75 %"):
        table.add_column(column, justify="right", no_wrap=True)
    if measures_memory:
        table.add_column("peak MiB", justify="right", no_wrap=True)
    for variant in comparison.variants:
        low, middle, high = quartiles([1e3 * value for value in variant.seconds])
        row = [variant.name, *(f"{value:.4g}" for value in (variant.rate, middle, low, high))]
        if measures_memory:
            row.append("-" if variant.peak_bytes is None else f"{variant.peak_bytes / 2**20:.1f}")
        table.add_row(*row)
    return table


def _ratio_table(comparison: Comparison) -> Table:
    measures_memory = any(ratio.memory is not None for ratio in comparison.ratios)
    table = Table()
    table.add_column("ratio")
    for column in ("speed", "25 %", "75 %", *(["memory"] if measures_memory else [])):
        table.add_column(column, justify="right", no_wrap=True)
    for ratio in comparison.ratios:
        row = [f"{ratio.name} : {ratio.over}"]
        row += [f"{value:.3f}" for value in (ratio.speed, ratio.low, ratio.high)]
        if measures_memory:
            row.append("-" if ratio.memory is None else f"{ratio.memory:.3f}")
        table.add_row(*row)
    return table
