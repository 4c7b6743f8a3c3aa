"""Interleaved timing, ratios and peak memory."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from rich.console import Console

from ffn.benchmarks.report import print_comparison
from ffn.benchmarks.timing import (
    Comparison,
    Variant,
    compare,
    in_sequence,
    interleave,
    peak_memory,
    product_speed,
)

CPU = torch.device("cpu")


def test_calls_are_interleaved_and_warm_up_does_not_count() -> None:
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}

    seconds = interleave(calls, rounds=3, warmup=1, device=CPU)

    assert "".join(order) == "abc" * 4
    assert [len(seconds[name]) for name in "abc"] == [3, 3, 3]


def test_untimed_calls_come_before_each_timed_one() -> None:
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    times = iter(range(100))

    def clock() -> float:
        order.append("|")
        return next(times)

    seconds = interleave(calls, rounds=1, warmup=1, untimed=2, device=CPU, clock=clock)

    assert "".join(order) == "aa|abb|b" + "aa|a|bb|b|"
    assert seconds == {"a": (1,), "b": (1,)}


def test_speed_of_a_product_is_that_of_the_best_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(calls: dict[str, Any], **_: Any) -> dict[str, tuple[float, ...]]:
        assert calls["product"]().shape == (100, 100)
        return {"product": (0.5, 0.25, 1.0)}

    monkeypatch.setattr("ffn.benchmarks.timing.interleave", timed)
    assert product_speed(torch.float32, CPU, size=100) == 2 * 100**3 / 0.25


def test_rounds_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="rounds is 0; expected at least 1"):
        interleave({}, rounds=0, device=CPU)


def test_ratios_are_computed_round_by_round() -> None:
    """Both variants take four times as long in the last round; the ratio is the same."""
    fast = Variant("fast", 4, (1.0, 1.0, 2.0, 4.0), peak_bytes=300)
    slow = Variant("slow", 4, (2.0, 3.0, 4.0, 8.0), peak_bytes=200)

    (ratio,) = compare("", [fast, slow], [("fast", "slow")]).ratios

    assert (ratio.low, ratio.speed, ratio.high) == (2.0, 2.0, 2.25)
    assert ratio.memory == 1.5
    assert fast.rate == 4 / 1.5
    both = in_sequence("both", [fast, slow])
    assert both == Variant("both", 4, (3.0, 4.0, 6.0, 12.0), peak_bytes=300)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_peak_memory_counts_what_is_held_at_a_time(device: str) -> None:
    block, held = 1 << 20, torch.ones(1 << 18, device=device)  # a MiB each

    def call() -> torch.Tensor:
        a = torch.empty(2 * block, dtype=torch.uint8, device=device)
        b = torch.empty(3 * block, dtype=torch.uint8, device=device)
        del a
        c = torch.empty(block, dtype=torch.uint8, device=device)
        del b
        return c + held[0].to(torch.uint8)  # a few bytes, and a block

    peak = peak_memory(call, torch.device(device))

    assert 5 * block <= peak < 5 * block + 4096
    assert peak_memory(call, torch.device(device)) == peak


def test_tables_show_memory_where_it_was_measured() -> None:
    fast, slow = Variant("fast", 4, (0.5, 1.0)), Variant("slow", 4, (1.0, 2.0), peak_bytes=3 << 20)
    measured = compare("title [a]", [fast, slow], [("fast", "slow")])
    timed = Comparison("other", (fast,), ())
    screens = []
    for comparison in (measured, timed):
        screen = io.StringIO()
        console = Console(file=screen, width=100)
        print_comparison(comparison, items="clips", console=console)
        screens.append(screen.getvalue())

    assert "title [a]" in screens[0]
    assert "fast : slow" in screens[0]
    assert "2.000" in screens[0]
    assert "3.0" in screens[0]
    assert "peak MiB" not in screens[1]


def test_memory_of_other_devices_is_refused() -> None:
    with pytest.raises(ValueError, match="memory of device meta cannot be measured"):
        peak_memory(lambda: None, torch.device("meta"))
