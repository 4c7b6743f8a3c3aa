"""The zoo's table, and the page that is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffn.cli.zoo import main, page, weights_table
from ffn.zoo.records import find_record, list_weights

FOLDER = Path(__file__).parents[2] / "model_zoo"


def test_the_page_is_what_the_tool_writes() -> None:
    assert (FOLDER / "README.md").read_text() == page(FOLDER), "run tools/zoo.py --write"


def test_every_record_has_its_line() -> None:
    lines = weights_table(list_weights()).splitlines()[2:]
    assert len(lines) == len(list_weights())
    for name, line in zip(list_weights(), lines, strict=True):
        record = find_record(name)
        assert line.startswith(f"| `{name}` | `{record.model}`, ")
        assert line.count(" | ") == 6
        for frames in record.trained_frames or ():
            assert f"{frames}: {record.metrics[frames]['top1']:.2f}" in line
        assert ("on first download" in line) == (record.sha256 is None)


def test_a_pattern_chooses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tsm_r50.sthv1_*"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 4
    assert (
        "| `tsm_r50.sthv1_f4_8_16` | `tsm_r50`, frame-flexible | 174 | 4: 42.85, 8: 48.20"
        in printed
    )
