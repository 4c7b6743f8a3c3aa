"""Interleaved timing, ratios and peak memory."""

from __future__ import annotations

import pytest
import torch

from ffn.benchmarks.timing import Variant, compare, in_sequence, interleave
from ffn.evaluation.cost import peak_memory

CPU = torch.device("cpu")


def test_calls_are_interleaved_and_warm_up_does_not_count() -> None:
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}

    seconds = interleave(calls, rounds=3, warmup=1, device=CPU)

    assert "".join(order) == "abc" * 4
    assert [len(seconds[name]) for name in "abc"] == [3, 3, 3]


def test_ratios_are_computed_round_by_round() -> None:
    """Both variants take four times as long in the last round; the ratio is the same."""
    fast = Variant("fast", (1.0, 1.0, 2.0, 4.0), peak_bytes=300)
    slow = Variant("slow", (2.0, 3.0, 4.0, 8.0), peak_bytes=200)

    found, reference = compare("", 4, "slow", [fast, slow]).variants

    assert found.speed == (2.0, 2.0, 2.25)
    assert (found.memory, reference.speed, reference.memory) == (1.5, (1.0, 1.0, 1.0), 1.0)
    both = in_sequence("both", [fast, slow])
    assert both == Variant("both", (3.0, 4.0, 6.0, 12.0), peak_bytes=300)


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
