"""Files that commands read and write: existing results, full disks, damaged files, frames."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ffn.cli import main
from ffn.files import atomic_write, explain, naming

WEIGHTS = "tsm_tiny.motion_f4_8_16"


def run(command: str, *arguments: str) -> int:
    return main([command, *arguments])


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


def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ffn.engine.failures.run_command", lambda *_, **__: pytest.fail("started"))
    (here / "file").write_text("mine")
    for command in ("test --weights " + WEIGHTS, "find_lr"):
        name, *rest = command.split()
        assert run(name, "quickstart/motion_flexible", *rest, "--output", "file/x") == 2
        assert f"ffn {name}: file" in capsys.readouterr().err


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
    assert explain(FileExistsError("x exists")) == "x exists"


def frames(folder: Path, pattern: str) -> str:
    folder.mkdir()
    for number in range(1, 5):
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / pattern.format(number))
    return str(folder)


def test_predict_takes_a_pattern(tmp_path: Path) -> None:
    path = frames(tmp_path / "video", "img_{:05d}.jpg")
    assert run("predict", path, "--weights", WEIGHTS, "--pattern", "img_{:05d}.jpg") == 0
    assert run("predict", path, "--weights", WEIGHTS) == 1
