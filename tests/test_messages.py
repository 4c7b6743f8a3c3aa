"""The table of docs/messages.md is what the commands answer now."""

from __future__ import annotations

import pytest
import torch
from messages import CASES, COLUMNS, PAGE, START, Case, answer, small_videos

ROWS = {
    cells[0]: cells
    for line in PAGE.read_text(encoding="utf-8").partition(START)[2].splitlines()
    if len(cells := [cell.strip() for cell in line.strip("|").split(" | ")]) == len(COLUMNS)
}


def test_the_table_has_a_row_for_each_case() -> None:
    assert list(ROWS) == [case.done for case in CASES]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.done)
def test_messages(case: Case) -> None:
    if "without CUDA" in case.done and torch.cuda.is_available():
        pytest.skip("a CUDA device is there")
    with small_videos():
        found = answer(case)
    assert found.replace("|", "\\|") == ROWS[case.done][-1]
    assert "Traceback" not in found
    assert 20 < len(found) < 500
