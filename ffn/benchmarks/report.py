"""Comparisons as tables on the console, and what they were measured with."""

from __future__ import annotations

import datetime
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ffn.benchmarks.timing import Comparison, quartiles
from ffn.devices import describe_device
from ffn.version import __version__

MEMORY = {
    "cpu": "peak of torch's CPU allocator, from torch.profiler; without oneDNN's own buffers",
    "cuda": "peak of torch's CUDA allocator, torch.cuda.max_memory_allocated",
}


def describe_run(device: torch.device) -> dict[str, Any]:
    """Date, device, number of CPU threads, versions, and the meaning of the memory."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": describe_device(device),
        "threads": torch.get_num_threads(),
        "ffn": __version__,
        "torch": str(torch.__version__),
        "memory": MEMORY[device.type],
    }


def print_comparison(comparison: Comparison, items: str) -> None:
    """Print a table of variants, with rates in items per second, and a table of ratios."""
    console = Console()
    variants = _table(escape(comparison.title), "variant", f"{items}/s", "ms", "25 %", "75 %")
    variants.add_column("peak MiB", justify="right")
    for variant in comparison.variants:
        low, middle, high = quartiles([1e3 * value for value in variant.seconds])
        times = [f"{value:.4g}" for value in (variant.rate, middle, low, high)]
        peak = variant.peak_bytes
        variants.add_row(variant.name, *times, "" if peak is None else f"{peak / 2**20:.1f}")
    console.print(variants)
    ratios = _table(None, "ratio", "speed", "25 %", "75 %", "memory")
    for ratio in comparison.ratios:
        values = (ratio.speed, ratio.low, ratio.high, ratio.memory)
        cells = ("" if value is None else f"{value:.3f}" for value in values)
        ratios.add_row(f"{ratio.name} : {ratio.over}", *cells)
    console.print(ratios)


def _table(title: str | None, first: str, *numbers: str) -> Table:
    table = Table(title=title)
    table.add_column(first)
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    return table
