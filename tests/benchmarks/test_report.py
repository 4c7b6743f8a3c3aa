"""The table of a benchmark, by hand."""

from __future__ import annotations

from dataclasses import replace

from ffn.benchmarks.report import markdown_table
from ffn.benchmarks.timing import Variant, compare


def test_times_relative_to_the_first_variant() -> None:
    slow = Variant("as trained", 1, (0.2, 0.4, 0.2))
    fast = Variant("fused", 1, (0.1, 0.2, 0.05))
    other = Variant("int8", 1, (0.05, 0.1, 0.05))
    pairs = [("fused", "as trained"), ("int8", "as trained")]
    both = compare("net, 8 frames", [slow, fast, other], pairs)
    both = replace(both, macs=3_000_000_000)
    one = compare(
        "net, 16 frames",
        [Variant("as trained", 1, (12, 12)), Variant("fused", 1, (3, 3))],
        pairs[:1],
    )
    short = compare("net, 4 frames", [Variant("as trained", 1, (0.00749, 0.00749))], [])
    speeds = {"fp32": 91.23, "bf16": 180.0}
    measured = {"device": "a processor, 1 thread", "torch": "2.15.0", "date": "2026-01-02T03:04:05"}
    measured |= {"product_gflops": speeds, "product_size": 1024}

    lines = markdown_table([both, one, short], measured).splitlines()

    assert lines[0].endswith(
        "as trained; a processor, 1 thread, torch 2.15.0, 2026-01-02. A product of two matrices of "
        "1024 x 1024 has 91 GFLOP/s in fp32 and 180 GFLOP/s in bf16 there."
    )
    assert lines[2:] == [
        "| | as trained | fused | int8 |",
        "|---|---|---|---|",
        "| net, 4 frames | 7.5 ms |  |  |",
        "| net, 8 frames | 200 ms, 30 GFLOP/s | 0.50 | 0.25 |",
        "| net, 16 frames | 12.0 s | 0.25 |  |",
    ]
