"""Jobs in subprocesses: order, failures, signals, and the end of the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ffn.engine.jobs import Job, JobError, job_environment, run_jobs
from ffn.engine.signals import StoppedError, StopRequest

ROOT = Path(__file__).parents[2]


def command(code: str) -> list[str]:
    return [sys.executable, "-c", f"import os, signal, sys, time; {code}"]


def job(folder: Path, name: str, *codes: str) -> Job:
    return Job(name, [command(code) for code in codes], folder / "logs" / f"{name}.log")


def wait_for(path: Path) -> None:
    limit = time.monotonic() + 30
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < limit, f"{path} was not written"
        time.sleep(0.02)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def run(jobs: list[Job], parallel: int = 1) -> list[str]:
    ended: list[str] = []
    with StopRequest() as stop:
        run_jobs(jobs, parallel=parallel, stop=stop, on_end=lambda job, _: ended.append(job.name))
    return ended


def test_commands_run_in_order_and_append_to_the_log(tmp_path: Path) -> None:
    jobs = [job(tmp_path, name, f"print('{name} 1')", f"print('{name} 2')") for name in "ab"]
    (tmp_path / "logs").mkdir()
    jobs[0].log.write_text("before\n")

    assert run(jobs) == ["a", "b"]

    assert jobs[0].log.read_text() == "before\na 1\na 2\n"
    assert jobs[1].log.read_text() == "b 1\nb 2\n"


def test_two_jobs_run_at_a_time(tmp_path: Path) -> None:
    """Each of the first two waits for the other; the third starts when one has ended."""

    def code(own: str, other: str) -> str:
        wait = f"any(time.sleep(0.02) for _ in iter(lambda: os.path.exists('{other}'), True))"
        return f"os.chdir({str(tmp_path)!r}); open('{own}', 'w').close(); {wait}"

    jobs = [job(tmp_path, "a", code("a", "b")), job(tmp_path, "b", code("b", "a"))]
    jobs.append(job(tmp_path, "c", code("c", "c")))

    ended = run(jobs, parallel=2)

    assert ended[2] == "c"
    assert sorted(ended) == ["a", "b", "c"]


def test_a_failure_stops_the_other_jobs(tmp_path: Path) -> None:
    other = tmp_path / "other"
    waits = f"open({str(other)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    fails = (
        f"any(time.sleep(0.02) for _ in iter(lambda: os.path.exists({str(other)!r}), True)); "
        "time.sleep(0.2); print('cause'); print(); sys.exit(3)"
    )
    jobs = [job(tmp_path, "fails", fails), job(tmp_path, "waits", waits, "print('next')")]

    with pytest.raises(JobError) as error:
        run(jobs, parallel=2)

    assert str(error.value) == f"fails ended with status 3 (log: {jobs[0].log}): cause"
    assert not is_alive(int(other.read_text()))
    assert jobs[1].log.read_text() == ""


def test_a_killed_command_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"dies ended with signal 9 .*: no output"):
        run([job(tmp_path, "dies", "os.kill(os.getpid(), signal.SIGKILL)")])


def test_a_signal_stops_all_jobs_after_their_own_end(tmp_path: Path) -> None:
    """The parent gets SIGINT; the job gets SIGTERM once, and may save."""
    code = (
        "signal.signal(signal.SIGINT, lambda *_: print('SIGINT', flush=True)); "
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), print('saved'), sys.exit(75)));"
        " print('ready', flush=True); os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"
    )
    jobs = [job(tmp_path, "trains", code, "print('tests')"), job(tmp_path, "later", "print(1)")]

    with pytest.raises(StoppedError):
        run(jobs)

    assert jobs[0].log.read_text() == "ready\nsaved\n"
    assert not jobs[1].log.exists()


def test_environment_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffn.engine.jobs.usable_cores", lambda: 7)

    assert job_environment(0, 1, {"A": "1"}, gpus=0) == {"A": "1"}
    assert job_environment(1, 2, {}, gpus=0) == {"OMP_NUM_THREADS": "3"}
    assert job_environment(0, 9, {}, gpus=1) == {"OMP_NUM_THREADS": "1"}
    assert job_environment(0, 2, {"OMP_NUM_THREADS": "5"}, gpus=0) == {"OMP_NUM_THREADS": "5"}
    found = [job_environment(slot, 3, {}, gpus=2)["CUDA_VISIBLE_DEVICES"] for slot in range(3)]
    assert found == ["0", "1", "0"]
    named = {"CUDA_VISIBLE_DEVICES": "4, 7"}
    assert job_environment(1, 2, named, gpus=2)["CUDA_VISIBLE_DEVICES"] == "7"


PARENT = """
import sys
from pathlib import Path
from ffn.engine.jobs import Job, run_jobs
from ffn.engine.signals import StopRequest

job = Job("job", [[sys.executable, "-c", *sys.argv[1:]]], Path(sys.argv[2] + ".log"))
with StopRequest() as stop:
    run_jobs([job], parallel=1, stop=stop, on_end=print)
"""
CHILD = """
import signal, sys, time
from pathlib import Path
from ffn.engine.jobs import end_with_parent

def end(*_):
    Path(sys.argv[1] + ".end").write_text("ended")
    sys.exit()

signal.signal(signal.SIGTERM, end)
end_with_parent()
Path(sys.argv[1] + ".start").write_text("started")
time.sleep(60)
"""


@pytest.mark.slow
def test_a_job_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD, str(tmp_path / "job")],
        env={**os.environ, "PYTHONPATH": paths},
    )
    wait_for(tmp_path / "job.start")
    time.sleep(0.3)
    assert not (tmp_path / "job.end").exists()

    parent.send_signal(signal.SIGKILL)
    parent.wait()

    wait_for(tmp_path / "job.end")
