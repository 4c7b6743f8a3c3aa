"""Curves show the values of the logs, also of runs in progress."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ffn.cli import main
from ffn.cli.plot_log import named
from ffn.evaluation import curves
from ffn.evaluation.plots import COLORS

pytest.importorskip("matplotlib")


def write_run(folder: Path, *, scale: float = 1.0, steps: int = 8, end: str = "") -> Path:
    lines: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        values = {"loss": scale / step, "loss/ce_16": 1.0, "loss/kl_4": 0.5, "top1/16": 8 * scale}
        values |= {"lr": 0.1, "grad_norm": step, "videos_per_s": 50.0, "data_wait": 0.25}
        values |= {"memory_mib": 900.0}
        lines.append({"step": step, "time": step, **{f"train/{k}": v for k, v in values.items()}})
        if step % 4 == 0:
            found = {"top1/8": 3.0 * step, "top1/16": scale * step, "mean": scale * step}
            lines.append({"step": step, "time": step, **{f"val/{k}": v for k, v in found.items()}})
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + end)
    return folder


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures drawn in a test."""
    drawn = []

    def keep(*size: float) -> Any:
        drawn.append(real(*size))
        return drawn[-1]

    real = curves.new_figure
    monkeypatch.setattr(curves, "new_figure", keep)
    return drawn


def panels(figure: Any) -> dict[str, list[Any]]:
    """Title -> lines of the visible panels, row by row."""
    return {axes.get_title(): axes.get_lines() for axes in figure.axes if axes.get_visible()}


def replace(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def points(line: Any) -> list[tuple[float, float]]:
    return list(zip(line.get_xdata(), line.get_ydata(), strict=True))


def test_two_runs_are_drawn(tmp_path: Path, figures: list[Any]) -> None:
    runs = [write_run(tmp_path / "first"), write_run(tmp_path / "second", scale=2.0, steps=5)]
    output = tmp_path / "new" / "curves.png"

    assert main(["plot_log", *map(str, runs), "--output", str(output)]) == 0

    assert output.read_bytes()[:4] == b"\x89PNG"
    found = panels(figures[0])
    assert {"loss/kl_4", "top-1 % at 8 frames", "learning rate", "gradient norm"} < found.keys()
    first, second = found["loss"]
    assert points(first) == [(step, 1 / step) for step in range(1, 9)]
    assert points(second) == [(step, 2 / step) for step in range(1, 6)]
    assert [line.get_color() for line in (first, second)] == list(COLORS[:2])
    train, val, _, other_val = found["top-1 % at 16 frames"]
    assert (train.is_dashed(), val.is_dashed()) == (True, False)
    assert points(val) == [(4, 4.0), (8, 8.0)]
    assert points(other_val) == [(4, 8.0)]
    heights = {a.get_ylim() for a in figures[0].axes if a.get_title().startswith("top-1 %")}
    assert len(heights) == 1  # one scale for all counts


def test_keys_choose_the_panels(tmp_path: Path, figures: list[Any]) -> None:
    run = write_run(tmp_path / "run")
    keys = ["train/memory_mib", "val/top1/*"]
    assert main(["plot_log", str(run), "--output", str(tmp_path / "a.svg"), "--keys", *keys]) == 0
    found = panels(figures[0])
    assert list(found) == ["memory (MiB)", "top-1 % at 8 frames", "top-1 % at 16 frames"]
    assert points(found["top-1 % at 16 frames"][0]) == [(4, 4.0), (8, 8.0)]


def test_many_runs_one_of_them_in_progress(tmp_path: Path, figures: list[Any]) -> None:
    runs = [write_run(tmp_path / f"flexible.s{seed}") for seed in range(11)]
    runs.append(write_run(tmp_path / "new", steps=1, end='{"step": 2, "train/lo'))
    assert main(["plot_log", *map(str, runs), "--output", str(tmp_path / "a.png")]) == 0
    (box,) = figures[0].legends
    assert len({tuple(line.get_color()) for line in box.get_lines()}) == 12
    last = panels(figures[0])["loss"][-1]
    assert (points(last), last.get_marker()) == ([(1, 1.0)], "o")  # a point has no line


def test_gaps_and_decades(tmp_path: Path, figures: list[Any]) -> None:
    """A number that is not finite leaves a gap; norms that span decades are on a log axis."""
    run = write_run(tmp_path / "run")
    replace(run / "log.jsonl", '"train/grad_norm": 2,', '"train/grad_norm": null,')
    replace(run / "log.jsonl", '"train/grad_norm": 8,', '"train/grad_norm": 800,')
    assert main(["plot_log", str(run), "--output", str(tmp_path / "a.png")]) == 0
    (line,) = panels(figures[0])["gradient norm"]
    assert [math.isnan(y) for y in line.get_ydata()] == [False, True, *[False] * 6]
    (scale,) = (a.get_yscale() for a in figures[0].axes if a.get_title() == "gradient norm")
    assert scale == "log"


def test_runs_are_named_by_the_end_of_their_path(tmp_path: Path) -> None:
    same = [tmp_path / "one" / "a", tmp_path / "two" / "a"]
    assert list(named([str(same[0]), str(tmp_path / "b")])) == ["a", "b"]
    assert list(named(map(str, same))) == ["one/a", "two/a"]
    assert list(named([str(same[0]), f"{same[0]}/", str(same[0] / "." / "")])) == ["a"]
    assert named([str(same[0])])["a"] == same[0]


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/log.jsonl").touch()
    (tmp_path / "there.png").write_bytes(b"mine")
    for given in ("empty", "run --output there.png", "run --keys train/lose"):
        assert main(["plot_log", *given.split()]) == 2
        assert given.split()[-1] in capsys.readouterr().err
    assert (tmp_path / "there.png").read_bytes() == b"mine"
