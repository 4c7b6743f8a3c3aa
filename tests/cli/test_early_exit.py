"""``ffn early_exit`` writes thresholds of a network that ``ffn predict`` answers with."""

from __future__ import annotations

from pathlib import Path

import pytest

import ffn
from ffn.cli import main
from ffn.evaluation import EarlyExit
from ffn.zoo import state_sha256

WEIGHTS = "tsm_tiny.motion_f4_8_16"
CONFIG = "quickstart/motion_flexible"


def test_fit_and_predict(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new/e.json"
    given = ["early_exit", CONFIG, "data.workers=0", "--weights", WEIGHTS, "--device", "cpu"]
    assert main([*given, "--frames", "4", "8", "--output", str(path)]) == 0

    shown = capsys.readouterr().out
    assert "held-out videos" in shown
    assert str(path) in shown
    found = EarlyExit.load(path)
    assert {*found.stages} <= {4, 8}
    assert found.network == WEIGHTS
    assert found.weights_sha256 == state_sha256(ffn.load(WEIGHTS).state_dict())

    video = next((here / "data/motion").rglob("*.mp4"))
    assert main(["predict", str(video), "--weights", WEIGHTS, "--early-exit", str(path)]) == 0
    assert "early exit" in capsys.readouterr().out
    beside = ["--weights", "tsm_tiny.motion_any_f2_20", "--frames", "early_exit"]  # which has one
    assert main(["predict", str(video), *beside]) == 0
    assert "early exit after " in capsys.readouterr().out

    for more, named in (
        (["--output", str(path)], "--overwrite"),
        ([], "--output"),  # the weights are no file to write beside
        (["--budget-gmacs", "0"], "--budget-gmacs"),
    ):
        assert main([*given, *more]) == 2
        assert named in capsys.readouterr().err
