"""Compare the cost of variants of one job, fairly on a machine that is never quite idle.

Variants run in turn, A B C A B C …, so that a slow moment of the machine meets all of them. What
counts are ratios: each round gives one; shown are their median and their quartiles.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from ffn.evaluation.cost import describe_device

FORMAT = 1  # of the JSON file
MEMORY = {
    "cpu": "peak of torch's CPU allocator, from torch.profiler; without oneDNN's own buffers",
    "cuda": "peak of torch's CUDA allocator, torch.cuda.max_memory_allocated",
}


@dataclass(frozen=True)
class Variant:
    """One of the things compared.

    Attributes:
        name: in tables and files.
        items: how many videos, clips or samples one call handles.
        seconds: duration of a call in each round.
        peak_bytes: most memory held at a time; None if not measured.
    """

    name: str
    items: int
    seconds: tuple[float, ...]
    peak_bytes: int | None = None

    @property
    def rate(self) -> float:
        """Items per second, by the median round."""
        return self.items / statistics.median(self.seconds)


@dataclass(frozen=True)
class Ratio:
    """One variant over another.

    Attributes:
        name: the variant.
        over: the one it is compared with.
        speed: items per second, as a ratio: the median over the rounds. 2 is twice as fast.
        low: lower quartile of the rounds' ratios.
        high: upper quartile.
        memory: peak memory, as a ratio; None if not measured.
    """

    name: str
    over: str
    speed: float
    low: float
    high: float
    memory: float | None


@dataclass(frozen=True)
class Comparison:
    """Variants that ran in turn, and the ratios asked of them.

    Attributes:
        title: what all of them have in common, as "4 frames".
        variants: in the order in which they ran.
        ratios: pairs of them.
    """

    title: str
    variants: tuple[Variant, ...]
    ratios: tuple[Ratio, ...]


def interleave(
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    device: torch.device,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, tuple[float, ...]]:
    """Time calls in turn: the first, the second, …, and again from the first.

    Args:
        calls: what to time, by name.
        rounds: timed calls of each, at least 1.
        device: waited for before and after each call.
        warmup: rounds before them that do not count.
        clock: time in seconds; ``time.process_time`` counts what this process's CPUs do.

    Returns:
        For each name the duration of a call in every round, in seconds.

    Raises:
        ValueError: ``rounds`` is below 1.
    """
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}; expected at least 1")
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(warmup + rounds):
        for name, call in calls.items():
            _wait(device)
            start = clock()
            call()
            _wait(device)
            if number >= warmup:
                seconds[name].append(clock() - start)
    return {name: tuple(values) for name, values in seconds.items()}


def peak_memory(call: Callable[[], object], device: torch.device) -> int:
    """Most bytes of tensors that a call holds at a time, beyond those held before it.

    Both kinds of device are asked the same question, of torch's own allocator (`MEMORY`); the
    memory of the process is larger, since allocators and libraries keep reserves.

    Args:
        call: what to measure; run once.
        device: where its tensors are, a CPU or a CUDA device.

    Raises:
        ValueError: another device.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu":
        raise ValueError(f"memory of device {device} cannot be measured; allowed: cpu, cuda")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        call()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        run.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    changes = [e for e in events if e.get("name") == "[memory]" and e["args"]["Device Type"] == 0]
    held = peak = 0
    for event in sorted(changes, key=lambda event: event["ts"]):
        held += event["args"]["Bytes"]  # negative when freed
        peak = max(peak, held)
    return peak


def in_sequence(name: str, parts: Sequence[Variant]) -> Variant:
    """What it costs to do the jobs of several variants one after the other, for the same items.

    Args:
        name: of the result.
        parts: variants of one run, of equally many items.

    Returns:
        A variant whose rounds are the sums of theirs; its memory is that of the largest.
    """
    peaks = [part.peak_bytes for part in parts]
    return Variant(
        name,
        parts[0].items,
        tuple(sum(seconds) for seconds in zip(*(part.seconds for part in parts), strict=True)),
        None if None in peaks else max(peaks),
    )


def compare(
    title: str, variants: Sequence[Variant], pairs: Sequence[tuple[str, str]]
) -> Comparison:
    """Form ratios, round by round.

    Args:
        title: see :class:`Comparison`.
        variants: of one run of :func:`interleave`.
        pairs: (variant, the one it is compared with), by name.
    """
    named = {variant.name: variant for variant in variants}
    ratios = tuple(_ratio(named[one], named[other]) for one, other in pairs)
    return Comparison(title, tuple(variants), ratios)


def describe_run(device: torch.device) -> dict[str, Any]:
    """When, on which device, with how many threads and which torch a benchmark ran."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": describe_device(device),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }


def print_comparisons(
    comparisons: Sequence[Comparison],
    *,
    items: str,
    measured: Mapping[str, Any],
    console: Console | None = None,
) -> None:
    """Print, for each comparison, a table of its variants and one of its ratios.

    Args:
        comparisons: what to show.
        items: what the rates count, as "clips".
        measured: see :func:`describe_run`; printed last, one line per entry.
        console: where to print; the terminal by default.
    """
    console = console or Console()
    for comparison in comparisons:
        console.print(_variant_table(comparison, items))
        console.print(_ratio_table(comparison))
    for key, value in measured.items():
        console.print(f"{key}: {value}", markup=False, highlight=False, soft_wrap=True)


def save_comparisons(
    comparisons: Sequence[Comparison],
    path: str | Path,
    *,
    measured: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Write all of it as JSON; the file appears whole, and replaces one that is there.

    Args:
        comparisons: what was measured.
        path: the file; its folder is made if missing.
        measured: see :func:`describe_run`.
        options: what was asked for; paths become text.
    """
    content = {
        "format": FORMAT,
        "measured": dict(measured),
        "options": dict(options),
        "comparisons": [asdict(comparison) for comparison in comparisons],
    }
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _ratio(one: Variant, other: Variant) -> Ratio:
    factor = one.items / other.items
    speeds = [factor * b / a for a, b in zip(one.seconds, other.seconds, strict=True)]
    memory = None
    if one.peak_bytes is not None and other.peak_bytes:
        memory = one.peak_bytes / other.peak_bytes
    low, speed, high = _quartiles(speeds)
    return Ratio(one.name, other.name, speed, low, high, memory)


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _variant_table(comparison: Comparison, items: str) -> Table:
    measures_memory = any(v.peak_bytes is not None for v in comparison.variants)
    table = Table(title=escape(comparison.title))
    table.add_column("variant")
    for column in (f"{items}/s", "ms", "25 %", "75 %"):
        table.add_column(column, justify="right", no_wrap=True)
    if measures_memory:
        table.add_column("peak MiB", justify="right", no_wrap=True)
    for variant in comparison.variants:
        low, middle, high = _quartiles([1e3 * value for value in variant.seconds])
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


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
