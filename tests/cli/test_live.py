"""The live command: formats, the log, and refused options."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from serve_files import save_network, write_video

from ffn.cli import main
from ffn.serve import Predictor

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("weights")
    return str(save_network(folder / "tiny.safetensors", spread=0.1))


@pytest.fixture(scope="module")
def video(tmp_path_factory) -> str:
    """Six seconds."""
    frames = np.random.default_rng(3).integers(0, 256, (60, 40, 48, 3), np.uint8)
    return str(write_video(tmp_path_factory.mktemp("videos") / "a.mp4", frames, rate=10))


def live(capsys, weights, *words: object) -> tuple[int, str, str]:
    status = main(["live", *map(str, words), "--weights", weights, "--precision", "fp32"])
    return status, *capsys.readouterr()


def test_json_lines_are_the_windows_of_the_file(capsys, weights, video) -> None:
    words = (video, "--speed", 10, "--window", 2, "--step", 1, "--frames", 4, "--top", 2)
    status, out, err = live(capsys, weights, *words, "--format", "json")

    assert status == 0
    assert err.startswith("ffn live: 6.0 s, 60 frames, 0 of them dropped; 5 answers")
    found = [json.loads(line) for line in out.splitlines()]
    predictor = Predictor(weights, precision="fp32")
    windows = list(predictor.windows(video, 2.0, step=1.0, frames=4, batch_size=1))
    for line, window in zip(found, windows, strict=True):
        assert [(x["label"], x["probability"]) for x in line["labels"]] == window.top(2)
        assert (line["start"], line["end"]) == pytest.approx((window.start, window.end))
        assert (line["frames"], line["sub_network"]) == (4, 4)
        assert line["latency_ms"] > 0
    assert found[0]["changed"]
    assert found[0]["shown"] == found[0]["labels"][:1]


def test_text_has_a_line_per_change_of_the_label(capsys, weights, video, tmp_path) -> None:
    log = tmp_path / "out/log.jsonl"
    words = (video, "--speed", 10, "--step", 0.5, "--frames", 2, "--smooth", 0, "--margin", 0)
    status, out, _ = live(capsys, weights, *words, "--repeat", "--duration", 9, "--log", log)

    assert status == 0
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert entries[-1]["time"] == pytest.approx(8.9)
    changes = [e["shown"][0]["label"] for e in entries if e["changed"]]
    assert [line.split()[1] for line in out.splitlines()[1:]] == changes[1:]

    before = log.read_bytes()
    assert live(capsys, weights, *words, "--log", log)[:2] == (2, "")
    assert log.read_bytes() == before


def test_refused(capsys, weights, video) -> None:
    for words, named in {
        "97": "/dev/video97",
        f"{video} --attempts 3": "attempts",
        "rtsp://h/1 --speed 2": "speed",
        f"{video} --input-option a": "--input-option",
    }.items():
        status, out, err = live(capsys, weights, *words.split())
        assert (status, out) == (2, "")
        assert named in err


def test_what_is_read_is_never_overwritten(capsys, weights, video, tmp_path) -> None:
    source = tmp_path / "a.mp4"
    shutil.copy(video, source)
    before = source.read_bytes(), Path(weights).read_bytes()
    for path in (source, weights):
        assert live(capsys, weights, source, "--log", path, "--overwrite")[0] == 2
    assert (source.read_bytes(), Path(weights).read_bytes()) == before


@pytest.mark.slow
def test_ctrl_c(weights, video, tmp_path) -> None:
    log = tmp_path / "log.jsonl"
    words = [video, "--weights", weights, "--repeat", "--step", "0.5", "--frames", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ffn", "live", *words, "--log", str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (not log.exists() or log.stat().st_size < 5000):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert re.match(r"0:00:0\d\.\d  (up|down|still)  \d+%  ", out)
    assert re.search(r"ffn live: .* answers, 0 skipped; latency", err)


@pytest.mark.slow
def test_a_load_lowers_the_number_of_frames(tmp_path) -> None:
    """The example, for a minute of wall time on one core; other processes run in its middle."""
    example, folder = ROOT / "examples/live_under_load.py", str(tmp_path)
    process = subprocess.run(
        [sys.executable, example, "--minutes", "2", "--folder", folder],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
    )
    assert process.returncode == 0, process.stderr
    log = [json.loads(line) for line in (tmp_path / "live.jsonl").read_text().splitlines()]

    def frames(start: float, end: float) -> float:
        return float(np.mean([e["frames"] for e in log if start <= e["time"] < end]))

    loaded, after = frames(50, 80), frames(105, 120)
    assert loaded < 12
    assert after >= loaded  # a simulated clock shows the rise; a slow machine has no time for it
    assert max(e["latency_ms"] for e in log) < 3000
