"""Files that commands write: folders without permission, and errors of the system."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ffn.cli import main
from ffn.files import atomic_write, explain, naming

WEIGHTS = "tsm_tiny.motion_f4_8_16"


def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("ffn.engine.failures.processes", lambda *_, **__: pytest.fail("started"))
    (here / "file").write_text("mine")
    command = ["test", "quickstart/motion_flexible", "--weights", WEIGHTS]
    assert main([*command, "--output", "file/x"]) == 2
    assert "ffn test: file" in capsys.readouterr().err


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_errors_of_the_system_name_the_path(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(OSError, match="No space") as failed, atomic_write(path) as _:
        full()
    assert explain(failed.value) == f"{path}: No space left on device"
    with pytest.raises(FileNotFoundError) as missing, atomic_write(path), naming(path):
        open(tmp_path / "other")  # noqa: SIM115
    assert explain(missing.value) == f"{tmp_path / 'other'}: No such file or directory"
    assert explain(FileExistsError("x exists")) == "x exists"
