"""Two runs never share a folder, and a dead one holds nobody up."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from engine_toys import ROOT

from ffn.engine.config import ConfigError
from ffn.engine.run_folder import CheckpointFolder
from ffn.engine.run_lock import FolderInUse, lock_folder

HOLD = """
import os, sys, time
from pathlib import Path
from ffn.engine.run_lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    if len(sys.argv) > 2 and os.fork() == 0:  # as a loader's process, which has the lock open too
        os.close(1)
        time.sleep(float(sys.argv[2]))
        os._exit(0)
    print("locked", flush=True)
    time.sleep(300)
"""


@contextmanager
def holder(folder: Path, *more: str) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *more],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b"locked\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_run_is_told_who_has_the_folder_and_gets_it_after_a_kill(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        who = rf"process {process.pid} on {socket.gethostname()}, since \d{{4}}-\d\d-\d\d \d\d:"
        with pytest.raises(FolderInUse, match=who) as error, lock_folder(tmp_path, wait=0.2):
            raise AssertionError("locked twice")
        assert "Wait for it, stop it, or choose another log.output" in str(error.value)
        assert isinstance(error.value, ConfigError)

        (tmp_path / ".lock.json").write_text("{")  # nobody knows who it is, and it holds still
        with pytest.raises(FolderInUse, match="another process"), lock_folder(tmp_path, wait=0):
            raise AssertionError("locked twice")

        process.send_signal(signal.SIGKILL)
        process.wait()
        with lock_folder(tmp_path, wait=1) as note:
            assert note is None
            assert f'"pid": {os.getpid()}' in (tmp_path / ".lock.json").read_text()


def test_processes_of_a_killed_run_may_take_a_moment_to_die(tmp_path: Path) -> None:
    with holder(tmp_path, "1.0") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with lock_folder(tmp_path):
            pass


def test_one_run_after_another(tmp_path: Path) -> None:
    for _ in range(2):
        with (
            lock_folder(tmp_path / "run"),
            pytest.raises(FolderInUse, match=f"process {os.getpid()}"),
            lock_folder(tmp_path / "run", wait=0),
        ):
            raise AssertionError("locked twice")
        assert set(os.listdir(tmp_path / "run")) <= {".lock"}


def test_a_failure_frees_the_folder(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), lock_folder(tmp_path, wait=0):
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    with lock_folder(tmp_path, wait=0.1) as note:
        assert str(tmp_path) in note
        assert "without locks" in note


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_lock_that_outlives_its_owner_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without flock, filelock takes a file's existence for a lock; version 3 takes it away too."""
    pytest.importorskip("filelock", minversion="4")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", fail)
    remedy = r"If that process is dead, remove .*\.lock"
    with (
        lock_folder(tmp_path, wait=0.1),
        pytest.raises(FolderInUse, match=remedy),
        lock_folder(tmp_path, wait=0),
    ):
        raise AssertionError("locked twice")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = r"file/run: .*choose another log\.output"
    with pytest.raises(ConfigError, match=message), lock_folder(tmp_path / "file" / "run"):
        raise AssertionError("made")


def test_what_a_dead_run_was_writing_is_removed(tmp_path: Path) -> None:
    run = CheckpointFolder(tmp_path, 1)
    (tmp_path / "checkpoints").mkdir()
    ours = (".last.pt.17.part", ".best.pt.17.part", "checkpoints/.step_00000123.pt.9.part")
    others = (".last.pt.part", "last.pt.17.part", ".notes.txt.17.part", "checkpoints/x.part")
    for name in (*ours, *others):
        (tmp_path / name).touch()

    with holder(tmp_path), pytest.raises(FolderInUse), run.lock(0):
        raise AssertionError("locked twice")
    assert all((tmp_path / name).exists() for name in ours)  # someone may be writing them

    with run.lock():
        pass

    assert not any((tmp_path / name).exists() for name in ours)
    assert all((tmp_path / name).exists() for name in others)


def test_waiting_ends_when_the_other_run_does(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        start = time.monotonic()
        with pytest.raises(FolderInUse), lock_folder(tmp_path, wait=0.5):
            raise AssertionError("locked twice")
        assert 0.5 <= time.monotonic() - start < 5
        process.kill()
        with lock_folder(tmp_path, wait=10):
            assert time.monotonic() - start < 10
