"""One run at a time owns a folder; the lock of a killed run is released."""

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

from ffn.engine.checkpoints.folder import RunFolder
from ffn.engine.checkpoints.lock import FolderInUse, RunError, lock_folder

HOLD = """
import os, sys, time
from pathlib import Path
from ffn.engine.checkpoints.lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    if len(sys.argv) > 2 and os.fork() == 0:  # like a loader worker, which inherits the open lock
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


def test_error_names_the_owner_and_a_killed_owner_releases_the_folder(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        who = rf"process {process.pid} on {socket.gethostname()}, since \d{{4}}-\d\d-\d\d \d\d:"
        with pytest.raises(FolderInUse, match=who) as error, lock_folder(tmp_path, wait=0.2):
            raise AssertionError("locked twice")
        assert "Wait for it, stop it, or choose another log.output" in str(error.value)
        assert isinstance(error.value, RunError)

        (tmp_path / ".lock.json").write_text("{")  # the owner is unknown, and keeps the lock
        with pytest.raises(FolderInUse, match="another process"), lock_folder(tmp_path, wait=0):
            raise AssertionError("locked twice")

        process.send_signal(signal.SIGKILL)
        process.wait()
        with lock_folder(tmp_path, wait=1) as note:
            assert note is None
            assert f'"pid": {os.getpid()}' in (tmp_path / ".lock.json").read_text()


def test_lock_waits_for_the_workers_of_a_killed_run(tmp_path: Path) -> None:
    with holder(tmp_path, "1.0") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with lock_folder(tmp_path):
            pass


def test_folder_is_released_at_the_end(tmp_path: Path) -> None:
    for _ in range(2):
        with (
            lock_folder(tmp_path / "run"),
            pytest.raises(FolderInUse, match=f"process {os.getpid()}"),
            lock_folder(tmp_path / "run", wait=0),
        ):
            raise AssertionError("locked twice")
        assert set(os.listdir(tmp_path / "run")) <= {".lock"}


def test_folder_is_released_on_an_exception(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), lock_folder(tmp_path, wait=0):
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_file_system_without_locks_gives_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    with lock_folder(tmp_path, wait=0.1) as note:
        assert str(tmp_path) in note
        assert "without locks" in note


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_lock_that_remains_after_its_owner_gives_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without flock, filelock uses the existence of a file as a lock."""
    pytest.importorskip("filelock", minversion="4.1")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", fail)
    remedy = r"If that process has ended, remove .*\.lock"
    with (
        lock_folder(tmp_path, wait=0.1),
        pytest.raises(FolderInUse, match=remedy),
        lock_folder(tmp_path, wait=0),
    ):
        raise AssertionError("locked twice")


def test_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = r"file/run: .*choose another log\.output"
    with pytest.raises(RunError, match=message), lock_folder(tmp_path / "file" / "run"):
        raise AssertionError("created")


def test_partial_files_of_a_dead_run_are_removed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, 1)
    (tmp_path / "checkpoints").mkdir()
    ours = (".last.pt.17.part", ".best.pt.17.part", "checkpoints/.step_00000123.pt.9.part")
    others = (".last.pt.part", "last.pt.17.part", ".notes.txt.17.part", "checkpoints/x.part")
    for name in (*ours, *others):
        (tmp_path / name).touch()

    with holder(tmp_path), pytest.raises(FolderInUse), run.lock(0):
        raise AssertionError("locked twice")
    assert all((tmp_path / name).exists() for name in ours)  # the owner may be writing them

    with run.lock():
        pass

    assert not any((tmp_path / name).exists() for name in ours)
    assert all((tmp_path / name).exists() for name in others)


def test_waiting_ends_with_the_other_run(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        start = time.monotonic()
        with pytest.raises(FolderInUse), lock_folder(tmp_path, wait=0.5):
            raise AssertionError("locked twice")
        assert 0.5 <= time.monotonic() - start < 5
        process.kill()
        with lock_folder(tmp_path, wait=10):
            assert time.monotonic() - start < 10
