"""Figures of several networks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ffn.evaluation import plots
from ffn.evaluation.plots import save_figure
from ffn.evaluation.results import Row, Sweep

pytest.importorskip("matplotlib")


def sweep(name: str, counts: range) -> Sweep:
    row = Row(2, None, {"top1": 50.0}, 1.0, 10, None, 20, 0)
    rows = tuple(replace(row, frames=t, gmacs=float(t)) for t in counts)
    return Sweep(name, (4,), 10, (32, 32), rows, (), {"date": "today"})


def test_color_and_marker_differ_between_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = []
    write = plots.write_figure
    monkeypatch.setattr(
        plots, "write_figure", lambda figure, path: figures.append(figure) or write(figure, path)
    )
    save_figure([sweep(f"net {i}", range(1, 25)) for i in range(14)], tmp_path / "x.png")

    by_frames, _ = figures[0].axes
    curves = [line for line in by_frames.lines if line.get_linestyle() != "None"]
    assert len({(line.get_color(), line.get_marker()) for line in curves}) == 14
    assert list(by_frames.get_xticks()) == list(range(2, 25, 2))  # labels do not overlap
