"""The live command: formats, and an example that runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from ffn.cli import main
from ffn.serve import Predictor

ROOT = Path(__file__).parents[2]


@pytest.fixture
def video(videos) -> str:
    """Six seconds."""
    return videos[1]


def live(capsys, weights, *words: object) -> tuple[int, str, str]:
    status = main(["live", *map(str, words), "--weights", weights, "--precision", "fp32"])
    return status, *capsys.readouterr()


def test_json_lines_are_the_windows_of_the_file(capsys, weights, video) -> None:
    words = (video, "--speed", 10, "--window", 2, "--step", 1, "--frames", 4, "--top", 2)
    status, out, err = live(capsys, weights, *words, "--format", "json")

    assert status == 0
    assert err.startswith("ffn live: 6.0 s, 60 frames, 0 of them dropped; 0 answers skipped")
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


def test_text_has_a_line_per_change_of_the_label(capsys, weights, video) -> None:
    words = (video, "--speed", 10, "--step", 0.5, "--frames", 2, "--smooth", 0, "--margin", 0)
    status, out, err = live(capsys, weights, *words, "--repeat", "--duration", 9)

    assert status == 0
    assert err.startswith("ffn live: 9")
    labels = [line.split()[1] for line in out.splitlines()]
    assert labels
    assert all(a != b for a, b in pairwise(labels))


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--causal"]])
def test_the_example_of_a_load(tmp_path, more: list[str]) -> None:
    """Of 12 s of video, for 6 s; other processes run in the middle."""
    example = [sys.executable, ROOT / "examples/live_under_load.py", "--folder", tmp_path]
    done = subprocess.run(
        [*example, "--minutes", "0.2", *more],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0
    found = [json.loads(line) for line in (tmp_path / "live.jsonl").read_text().splitlines()]
    assert {answer["frames"] for answer in found} <= {4, 8, 16}
    assert 10 < found[-1]["time"] <= 12
