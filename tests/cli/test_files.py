"""Files that commands read and write: existing results, full disks, damaged files, frames."""

from __future__ import annotations

import errno
import importlib
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ffn.data import VideoError, open_video
from ffn.data.decoding.folder import pattern_of
from ffn.files import atomic_write, explain, naming

WEIGHTS = "tsm_tiny.motion_f4_8_16"


def run(command: str, *arguments: str) -> int:
    return importlib.import_module(f"ffn.cli.{command}").main(list(arguments))


def test_the_test_command_takes_overrides_after_the_weights(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["quickstart/motion_flexible", "--no-latency", "--weights", WEIGHTS]
    output = ["--output", str(here / "out")]

    assert (
        run("test", *given, "data.workers=0", "--frames", "4", "data.test_frames=[8]", *output) == 0
    )
    assert (here / "out/results.json").is_file()
    assert run("test", *given, "data.rot=x") == 2
    assert "did you mean data.root" in capsys.readouterr().err


def test_results_are_overwritten_on_request_only(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "kept").mkdir()
    (here / "kept/results.json").write_text("mine")
    given = ["quickstart/motion_flexible", "--weights", WEIGHTS, "--frames", "4", "--no-latency"]
    given += ["data.workers=0", "--output", "kept"]

    assert run("test", *given) == 2
    message = "kept/results.json exists; choose another --output, or add --overwrite"
    assert message in capsys.readouterr().err
    assert (here / "kept/results.json").read_text() == "mine"
    assert run("test", *given, "--overwrite") == 0
    assert (here / "kept/results.json").read_text() != "mine"


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("test", ("quickstart/motion_flexible", "--weights", WEIGHTS)),
        ("find_lr", ("quickstart/motion_flexible",)),
        ("check_data", ("data/motion/train.csv",)),
        ("browse", ("quickstart/motion_flexible",)),
        ("benchmark", ("infer", "--model", "tsm_tiny")),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    arguments: tuple[str, ...],
) -> None:
    for work in (
        "ffn.engine.failures.run_command",
        "ffn.datasets.checking.check_videos",
        "ffn.cli.browse._panels",
        "ffn.benchmarks.report.describe_run",
    ):
        monkeypatch.setattr(work, lambda *_, **__: pytest.fail("started"))
    (here / "file").write_text("mine")
    name = {"browse": "file/x.png", "benchmark": "file/x.json"}.get(command, "file/x")

    assert run(command, *arguments, "--output", name) == 2
    error = capsys.readouterr().err
    assert error.endswith("Not a directory; a part of this path is a file; name another folder\n")
    assert f"{command}.py: file" in error


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_errors_of_the_system_name_the_path_and_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(OSError, match="No space") as failed, atomic_write(path) as _:
        full()
    assert explain(failed.value) == (
        f"{path}: No space left on device; free space on its disk, or name another folder"
    )
    with pytest.raises(OSError, match="No space") as failed, naming(path):
        full()
    assert str(path) in explain(failed.value)
    with pytest.raises(FileNotFoundError) as missing, atomic_write(path), naming(path):
        open(tmp_path / "other")  # noqa: SIM115
    assert explain(missing.value) == f"{tmp_path / 'other'}: No such file or directory"
    read_only = OSError(errno.EROFS, os.strerror(errno.EROFS), "/ro/x")
    assert explain(read_only) == (
        "/ro/x: Read-only file system; name a folder on another file system"
    )
    assert explain(FileExistsError("x exists")) == "x exists"


def test_a_full_disk_while_packing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ffn.data.store.writer.StoreWriter._write", full)
    arguments = ("quickstart/motion_flexible", "data.store=full", "data.workers=1")
    assert run("pack", *arguments) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("pack.py: data/motion/full: No space left on device; free space")


def frames(folder: Path, pattern: str) -> str:
    folder.mkdir()
    for number in range(1, 5):
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / pattern.format(number))
    return str(folder)


@pytest.mark.parametrize("pattern", ["img_{:05d}.jpg", "{:06d}.png", "frame-{:d}.jpg"])
def test_the_pattern_of_frames_is_proposed(tmp_path: Path, pattern: str) -> None:
    path = frames(tmp_path / "video", pattern)
    with pytest.raises(VideoError) as failed:
        open_video(path)
    message = str(failed.value)
    assert f"set data.frame_pattern={pattern} in a config, --pattern '{pattern}'" in message
    assert len(open_video(path, pattern=pattern_of(os.listdir(path)))) == 4


def test_a_folder_of_videos_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("predict", "data/motion/videos", "--weights", WEIGHTS) == 1
    error = capsys.readouterr().err
    assert "It holds 24 videos; expected is one video or one folder of frames" in error
    assert "Name the videos: data/motion/videos/*" in error


def test_predict_takes_a_pattern(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = frames(tmp_path / "video", "img_{:05d}.jpg")
    assert run("predict", path, "--weights", WEIGHTS, "--pattern", "img_{:05d}.jpg") == 0
    assert run("predict", path, "--weights", WEIGHTS) == 1
    assert run("predict", path, "--weights", WEIGHTS, "--pattern", "img.jpg") == 2
    assert "expected exactly one field for the number" in capsys.readouterr().err
