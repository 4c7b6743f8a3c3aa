"""Comparisons as tables on the console, and what they were measured with."""

from __future__ import annotations

from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ffn.benchmarks.timing import Comparison, quartiles
from ffn.devices import describe_measurement

MEMORY = {
    "cpu": "peak of torch's CPU allocator, from torch.profiler; without oneDNN's own buffers",
    "cuda": "peak of torch's CUDA allocator, torch.cuda.max_memory_allocated",
}


def describe_run(device: torch.device) -> dict[str, Any]:
    """Date, device, versions, and the meaning of the memory."""
    return {**describe_measurement(device), "memory": MEMORY[device.type]}


def print_comparison(comparison: Comparison, items: str) -> None:
    """Print a table of variants, with rates in items per second and ratios to the reference."""
    caption = f"speed (median, quartiles) and memory: relative to {comparison.reference}"
    table = Table("variant", title=escape(comparison.title), caption=caption, box=None)
    table.columns[0].no_wrap = True
    for number in (f"{items}/s", "ms", "MiB", "speed", "25 %", "75 %", "memory"):
        table.add_column(number, justify="right", no_wrap=True)
    for variant in comparison.variants:
        _, middle, _ = quartiles([1e3 * value for value in variant.seconds])
        peak = None if variant.peak_bytes is None else f"{variant.peak_bytes / 2**20:.1f}"
        slow, speed, fast = (f"{ratio:.3f}" for ratio in variant.speed)
        memory = None if variant.memory is None else f"{variant.memory:.3f}"
        rate = 1e3 * comparison.items / middle
        numbers = [f"{rate:.4g}", f"{middle:.4g}", peak]
        table.add_row(variant.name, *numbers, speed, slow, fast, memory)
    Console().print(table)
