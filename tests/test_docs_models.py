"""The snippets of docs/models.md run, and print what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs/models.md").read_text()


def test_the_page_runs_and_shows_its_output(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(compile(code, "docs/models.md", "exec"), names)
    printed = capsys.readouterr().out
    (table,) = re.findall(r"```\n(TSM, frame-flexible.*?)```", PAGE, flags=re.DOTALL)

    assert table in printed
    assert "['model.net.fc.weight', 'model.net.fc.bias']" in printed
    shapes = {"features": (2, 8, 128, 4, 4), "embedding": (2, 128), "logits": (2, 12)}
    assert {name: tuple(names[name].shape) for name in shapes} == shapes
