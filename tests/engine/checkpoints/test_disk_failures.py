"""Full disks, read-only and missing folders, kills: earlier checkpoints stay valid."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_toys import ROOT
from run_toys import content, files, saved

from ffn.engine.checkpoints.file import CheckpointError, load_checkpoint
from ffn.engine.checkpoints.folder import RunFolder

IMPORTS = """
import os, random, resource, signal, time
from run_toys import *
from ffn.engine.checkpoints.file import *
from ffn.engine.checkpoints.folder import *
"""


def run_python(code: str, folder: Path) -> str:
    """Run code in its own process, with the helpers of `run_toys` imported."""
    paths = [str(ROOT), str(Path(__file__).parents[1])]
    start = f"import sys; sys.path[:0] = {paths!r}\n{IMPORTS}"
    process = subprocess.run(
        [sys.executable, "-c", start + code],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


FULL = """
run = saved(Path("run"), 1)
size = step_file(Path("run"), 1).stat().st_size
before = Path("run/last.pt").read_bytes()
for i in range(30):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size * i // 30, resource.RLIM_INFINITY))
    try:
        (run.save_best if i % 3 == 2 else lambda c: run.save(c, 2))(content(2))
        raise SystemExit("written")
    except CheckpointError as error:
        text = str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    assert "File too large" in text and "Free disk space (" in text and ".pt" in text, text
    assert files(Path("run")) == ["checkpoints/step_00000001.pt", "last.pt"], files(Path("run"))
    assert Path("run/last.pt").read_bytes() == before
    assert RunFolder(Path("run"), 3).newest().content["training"]["step"] == 1
run.save(content(2), 2)
print(i + 1, run.newest().content["training"]["step"])
"""


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, figure: Callable[..., None]) -> None:
    """The size of a file is limited to 30 sizes below that of the checkpoint."""
    sizes, newest = run_python(FULL, tmp_path).split()
    assert newest == "2"
    figure("sizes at which writing fails, and the checkpoint before loads each time", sizes)


READ_ONLY = """
run = saved(Path("."), 1)
os.chmod("checkpoints", 0o555); os.chmod(".", 0o555)
if os.getuid() == 0:  # permissions do not apply to root
    os.setuid(65534)
for write in (lambda: run.save(content(2), 2), lambda: run.save_best(content(2))):
    try:
        write()
        raise SystemExit("written")
    except CheckpointError as error:
        assert "Permission denied" in str(error) and "Check the permissions of" in str(error), error
assert files(Path(".")) == ["checkpoints/step_00000001.pt", "last.pt"]
print(RunFolder(Path("."), 3).newest().content["training"]["step"])
try:
    with RunFolder(Path("new"), 3).lock(0): pass
except ValueError as error:
    print(error)
"""


def test_a_read_only_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    shown = run_python(READ_ONLY, tmp_path / "run")
    (tmp_path / "run").chmod(0o755)

    assert shown.splitlines()[0] == "1"
    assert "cannot write to new: Permission denied; check its permissions" in shown


def test_a_folder_that_is_moved_away(tmp_path: Path) -> None:
    """It is not created again: its disk may be mounted again later."""
    run = saved(tmp_path / "run", 1)
    (tmp_path / "run").rename(tmp_path / "moved")

    for write in (lambda: run.save(content(2), 2), lambda: run.save_best(content(2))):
        with pytest.raises(
            CheckpointError,
            match=r"run folder is missing.*was moved, removed or unmounted; restore it",
        ):
            write()

    assert not (tmp_path / "run").exists()
    assert RunFolder(tmp_path / "moved", 3).newest().content["training"]["step"] == 1


def test_a_failing_link_leaves_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, replace = saved(tmp_path, 1, keep=1), os.replace

    def fail(source: Path, target: Path) -> None:
        if Path(target).name == "last.pt":
            raise OSError(errno.EIO, "disk failed", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(CheckpointError, match=r"last\.pt: disk failed.*Check the disk"):
        run.save(content(2), 2)

    steps = ["checkpoints/step_00000001.pt", "checkpoints/step_00000002.pt"]
    assert files(tmp_path) == [*steps, "last.pt"]  # the old one is not removed either
    assert load_checkpoint(tmp_path / "last.pt")["training"]["step"] == 1
    assert run.newest().content["training"]["step"] == 2


KILLED = """
rng, before, halves = random.Random(0), 0, 0
for round in range(20):
    pid = os.fork()
    if pid == 0:
        run = RunFolder(Path("run"), 2)
        with run.lock():
            found = run.newest()
            step = found.content["training"]["step"] if found else 0
            while True:
                step += 1
                whole = content(step)
                whole["model"]["more"] = torch.zeros(1_000_000)
                run.save(whole, step)
                if step % 3 == 0:
                    run.save_best(whole)
    while before == 0 and not Path("run/last.pt").exists():
        time.sleep(0.01)
    time.sleep(rng.uniform(0.05, 0.4))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    halves += any(name.endswith(".part") for name in files(Path("run")))
    run = RunFolder(Path("run"), 2)
    with run.lock():
        assert not any(name.endswith(".part") for name in files(Path("run")))
        found = run.newest()
    assert found.invalid == [], found.invalid
    step = found.content["training"]["step"]
    assert step >= before and bool((found.content["model"]["weight"] == step).all())
    load_checkpoint(Path("run/last.pt"))
    before = step
print(before, halves)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_during_a_save(tmp_path: Path) -> None:
    """Twenty times, at random moments; the next run gets the lock."""
    steps, halves = map(int, run_python(KILLED, tmp_path).split())

    assert steps > 20
    assert halves > 0  # some were killed in the middle of a file
