"""The accuracies of docs/inference.md are those of the results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/inference.md").read_text()
RUNS = json.loads((ROOT / "model_zoo/results/motion_precisions.json").read_text())["runs"]
PRECISIONS = ("fp32", "bf16", "int8")
FAMILIES = ("tsm_tiny", "slowfast_tiny", "tea_tiny", "uniformer_tiny")
TOP1 = {
    family: {
        precision: [row["top1_mean"] for row in RUNS[f"{precision}/{family}"]["rows"]]
        for precision in PRECISIONS
    }
    for family in FAMILIES
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_rows_of_a_network(family: str) -> None:
    lines = PAGE.splitlines()
    first = next(i for i, x in enumerate(lines) if x.startswith(f"| `{family}.motion_any_f2_20`"))
    for line, frames, *top1 in zip(lines[first:], (4, 8, 16), *TOP1[family].values(), strict=False):
        count, *shown = [cell.strip() for cell in line.strip("|").split("|")][1:]
        assert int(count) == frames
        assert shown == [f"{value:.2f}" for value in top1]


def test_the_largest_differences() -> None:
    largest = {
        precision: max(
            abs(found - exact)
            for rows in TOP1.values()
            for found, exact in zip(rows[precision], rows["fp32"], strict=True)
        )
        for precision in ("bf16", "int8")
    }
    bf16, int8 = (f"{value:.2f}" for value in largest.values())
    assert f"bf16 differs from fp32 by {bf16} points or less, int8 by {int8} or less" in PAGE
    assert f"int8 is within {int8} points of that of fp32" in (ROOT / "docs/export.md").read_text()
    assert max(largest.values()) <= 0.5
