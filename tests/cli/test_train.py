"""The command ``ffn train``: a run, errors, exit status."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_toys import options, write_videos

from ffn.cli import main


@pytest.fixture
def empty(tmp_path: Path) -> str:
    path = tmp_path / "empty.yaml"
    path.write_text("{}")
    return str(path)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_videos(tmp_path_factory.mktemp("videos"))


def test_a_run_starts_from_weights_of_other_frame_counts(
    videos: Path, empty: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    given = ["train.epochs=1", "model.weights=tsm_tiny.motion_f4_8_16", "model.name=tsm_tiny"]
    given += ["task.frames=[2,6]", "--device", "cpu"]

    assert main(["train", empty, *options(videos, tmp_path / "run", *given)]) == 0
    shown = capsys.readouterr().out
    assert "frame counts: 2 from 4, 6 from 8 (the nearest trained)" in shown
    assert f"best network: {tmp_path / 'run/best.pt'}" in shown


def test_errors_take_one_line(
    empty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "videos").mkdir()
    folder = write_videos(tmp_path / "videos", train=6, val=3)
    (folder / "train_3.mp4").write_bytes(b"no video")
    for arguments, named in (
        (["data.root=/nowhere", f"log.output={tmp_path}"], "/nowhere"),
        (["--device", "cuda:99"], "cuda:99"),
        (options(folder, tmp_path / "run"), "train_3.mp4"),
    ):
        assert main(["train", empty, *arguments]) == 2
        assert named in capsys.readouterr().err.splitlines()[-1]
