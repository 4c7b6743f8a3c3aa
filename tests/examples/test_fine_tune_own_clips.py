"""The example goes from folders of clips to a published network that predicts what it printed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import ffn
from ffn.datasets.synthetic import generate

EXAMPLE = Path(__file__).parents[2] / "examples/fine_tune_own_clips.py"
COMMANDS = ["prepare", *["check_data"] * 2, *["train"] * 2, *["test"] * 2, "publish"]
CLASSES = ("orbit_clockwise", "pulse_once", "sway_five_times")


def run(folder: Path, *arguments: str) -> str:
    # With the threads of other test processes beside them, more than one is slower.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, EXAMPLE, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^\$ ffn (\w+)", done.stdout, flags=re.MULTILINE) == COMMANDS
    return done.stdout


def top1(folder: Path) -> dict[int, float]:
    (network,) = json.loads((folder / "test/results.json").read_text())["networks"]
    return {row["frames"]: row["top1"] for row in network["rows"]}


@pytest.mark.slow
def test_own_clips(tmp_path: Path) -> None:
    generate(tmp_path / "made", train_per_class=5, val_per_class=1)
    for name in CLASSES:
        (tmp_path / "own" / name).mkdir(parents=True)
        for clip in (tmp_path / "made/videos").glob(f"train_{name}_*.mp4"):
            shutil.copy(clip, tmp_path / "own" / name)
    start = "tsm_tiny.motion_f4_8_16"
    options = ["data.crop=24", "data.resize=28", "train.epochs=1", "data.workers=0"]

    shown = run(tmp_path, "--clips", "own", "--model", "tsm_tiny", "--start", start, *options)

    assert f"start weights {start}" in shown
    assert "start weights runs/own_clips_plain/last.pt: matched: 86 of 86" in shown
    path = tmp_path / "runs/own_clips/release/tsm_tiny.own_f4_8_16.safetensors"
    record = yaml.safe_load(path.with_suffix(".yaml").read_text())
    assert record["classes"] == [*CLASSES]
    assert record["trained_frames"] == [4, 8, 16]
    measured = {frames: metrics["top1"] for frames, metrics in record["metrics"].items()}
    expected = top1(tmp_path / "runs/own_clips")
    assert [*measured] == [2, 4, 6, 8, 12, 16, 20]
    assert measured == pytest.approx(expected, abs=0.01)

    predictor = ffn.Predictor(path)
    lines = re.findall(r"^(\S+) with (\d+) frames: (\w+) \((\d+) %\)", shown, flags=re.MULTILINE)
    assert [int(frames) for _, frames, *_ in lines] == [4, 6, 16]
    validation = (tmp_path / "own/index/val.csv").read_text()
    for clip, frames, label, percent in lines:
        assert str(Path(clip).relative_to("own")) in validation
        ((best, probability),) = predictor(tmp_path / clip, frames=int(frames)).top(1)
        assert (label, float(percent)) == (best, pytest.approx(100 * probability, abs=1))


@pytest.mark.slow
def test_generated_clips_are_learned(tmp_path: Path) -> None:
    run(tmp_path)

    assert top1(tmp_path / "runs/own_clips_plain")[16] > 2 * 100 / 6  # chance is 1 in 6
    assert top1(tmp_path / "runs/own_clips")[4] > 2 * 100 / 6
