"""A signal stops a run after its step, with a checkpoint; a second signal ends it at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from engine_toys import (
    ROOT,
    build,
    finish,
    launch,
    read_log,
    same_weights,
    train,
    wait_for_step,
)

from ffn.engine import loop
from ffn.engine.checkpoints import load_checkpoint
from ffn.engine.run import Run
from ffn.engine.signals import EXIT_STOPPED, SIGNALS, StoppedError, StopRequest


def training(folder: Path) -> dict[str, Any]:
    return load_checkpoint(folder / "last.pt")["training"]


def signal_in_step(run: Run, number: int, signal_number: signal.Signals) -> None:
    """Send a signal to this process in the middle of a step."""
    step, clip = run.train_step.step, run.train_step._clip

    def interrupted(**more: Any) -> Any:
        os.kill(os.getpid(), signal_number)
        return clip(**more)

    def watched(*args: Any, **more: Any) -> Any:
        run.train_step._clip = interrupted if more["number"] == number else clip
        return step(*args, **more)

    run.train_step.step = watched


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_step_is_finished_and_saved(
    videos: Path, finished: Path, tmp_path: Path, number: signal.Signals
) -> None:
    before = [signal.getsignal(one) for one in SIGNALS]
    run = build(videos, tmp_path / "run")
    signal_in_step(run, 5, number)

    with pytest.raises(StoppedError):
        loop.train(run)

    assert training(tmp_path / "run")["step"] == 6  # in the middle of the second epoch
    assert [signal.getsignal(one) for one in SIGNALS] == before
    assert same_weights(train(videos, tmp_path / "run"), finished)
    assert [e["step"] for e in read_log(tmp_path / "run")] == list(range(1, 9))


def test_last_step_of_an_epoch(videos: Path, finished: Path, tmp_path: Path) -> None:
    run = build(videos, tmp_path / "run")
    signal_in_step(run, 3, signal.SIGTERM)
    with pytest.raises(StoppedError):
        loop.train(run)

    assert same_weights(train(videos, tmp_path / "run"), finished)
    validations = [[e["epoch"] for e in read_log(f, "val")] for f in (tmp_path / "run", finished)]
    assert validations[0] == validations[1] == [1, 2]


def test_validation_is_interrupted_and_repeated(
    videos: Path, finished: Path, tmp_path: Path
) -> None:
    run = build(videos, tmp_path / "run")
    loader = run.validator.loader.dataset

    class Interrupted(type(loader)):
        def __getitem__(self, key: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("the signal did not interrupt validation")

    loader.__class__ = Interrupted
    with pytest.raises(StoppedError):
        loop.train(run)

    state = training(tmp_path / "run")
    assert (state["epoch"], state["step"], state["validates"]) == (1, 4, True)
    assert same_weights(train(videos, tmp_path / "run"), finished)
    logged = [
        [{k: v for k, v in e.items() if k != "time"} for e in read_log(f, "val")]
        for f in (tmp_path / "run", finished)
    ]
    assert logged[0] == logged[1]


def test_two_signals_within_a_second_are_one_request() -> None:
    """For example one from the terminal, and the same one forwarded by torchrun."""
    with StopRequest(verbose=False) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested


HANDLING = """
import os, signal, time
from ffn.engine.signals import StopRequest
with StopRequest() as stop:
    os.kill(os.getpid(), signal.SIGUSR1)
    assert stop.requested
    time.sleep(1.2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""


def test_second_signal_exits_at_once() -> None:
    found = subprocess.run(
        [sys.executable, "-c", HANDLING],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert found.returncode == 128 + signal.SIGTERM
    assert "SIGUSR1: the run stops after this step and saves; repeat to exit" in found.stderr
    assert found.stderr.endswith("\nexited without saving\n")


@pytest.mark.slow
def test_command_exits_with_its_own_status(videos: Path, finished: Path, tmp_path: Path) -> None:
    """Ctrl-C sends SIGINT to the whole process group; loader workers must ignore it."""
    more = ("data.workers=2", "train.batch_size=2", "train.epochs=1")
    whole = train(videos, tmp_path / "whole", *more[1:])
    process = launch(videos, tmp_path / "run", *more, own_group=True)
    wait_for_step(tmp_path / "run", 2, process)

    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)

    assert process.returncode == EXIT_STOPPED, err
    assert "the same command resumes the run" in err
    assert "Traceback" not in err
    step = training(tmp_path / "run")["step"]
    assert 2 <= step < 12
    finish(launch(videos, tmp_path / "run", *more))
    assert same_weights(tmp_path / "run", whole)


@pytest.mark.slow
def test_all_processes_stop_after_the_same_step(videos: Path, tmp_path: Path) -> None:
    """torchrun forwards the signal to its processes."""
    more = ("train.batch_size=2", "train.epochs=3")
    finish(launch(videos, tmp_path / "whole", *more, processes=2))
    process = launch(videos, tmp_path / "run", *more, processes=2)
    wait_for_step(tmp_path / "run", 3, process)
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - started < 25  # torchrun kills after 30 s
    assert process.returncode != 0
    assert "the same command resumes the run" in err
    assert 3 <= training(tmp_path / "run")["step"] < 36

    finish(launch(videos, tmp_path / "run", *more, processes=2))
    assert same_weights(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
def test_processes_of_a_killed_torchrun_save_and_end(videos: Path, tmp_path: Path) -> None:
    process = launch(
        videos, tmp_path / "run", "train.batch_size=2", "train.epochs=3000", processes=2
    )
    wait_for_step(tmp_path / "run", 3, process)
    trainers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(trainers) == 2
    process.kill()
    _, err = process.communicate(timeout=60)  # the trainers have its stderr: they have ended
    assert "the same command resumes the run" in err
    deadline = time.monotonic() + 30
    while any(is_running(pid) for pid in trainers):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert training(tmp_path / "run")["step"] >= 3


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
