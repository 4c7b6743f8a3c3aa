"""A signal stops a run after its step, with a checkpoint; a second signal ends it at once."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from engine_toys import (
    TWO_PROCESSES,
    build,
    launch,
    read_log,
    same_weights,
    train,
    wait_for_step,
)

from ffn.engine import loop
from ffn.engine.checkpoints import load_checkpoint
from ffn.engine.signals import SIGNALS, StoppedError, StopRequest


def training(folder: Path) -> dict[str, Any]:
    return load_checkpoint(folder / "last.pt")["training"]


@pytest.mark.parametrize("number", [3, 5])
def test_step_is_finished_and_saved(
    videos: Path, finished: Path, tmp_path: Path, number: int
) -> None:
    """In the middle of an epoch, and at its end, before the validation."""
    before = [signal.getsignal(one) for one in SIGNALS]
    run = build(videos, tmp_path / "run")
    backward = run.train_step._backward

    def interrupted(*given: Any, **more: Any) -> Any:
        if more["number"] == number:
            os.kill(os.getpid(), SIGNALS[number % 3])
        return backward(*given, **more)

    run.train_step._backward = interrupted
    with pytest.raises(StoppedError):
        loop.train(run)

    assert training(tmp_path / "run")["step"] == number + 1
    assert [signal.getsignal(one) for one in SIGNALS] == before
    assert same_weights(train(videos, tmp_path / "run"), finished)
    assert [e["step"] for e in read_log(tmp_path / "run")] == list(range(1, 9))
    assert [e["epoch"] for e in read_log(tmp_path / "run", "val")] == [1, 2]


def test_validation_is_interrupted_and_repeated(
    videos: Path, finished: Path, tmp_path: Path
) -> None:
    run = build(videos, tmp_path / "run")
    dataset = run.val_loader.dataset

    class Signalled(type(dataset)):
        def __getitem__(self, key: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("the signal did not interrupt validation")

    dataset.__class__ = Signalled
    with pytest.raises(StoppedError):
        loop.train(run)

    state = training(tmp_path / "run")
    assert (state["epoch"], state["step"], state["validates"]) == (1, 4, True)
    assert same_weights(train(videos, tmp_path / "run"), finished)
    logged = [[e["mean"] for e in read_log(f, "val")] for f in (tmp_path / "run", finished)]
    assert logged[0] == logged[1]


def test_second_signal_exits_at_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGINT)  # within a second: the same request, forwarded
        assert stop.requested
        assert exits == []
        stop._since -= 2
        os.kill(os.getpid(), signal.SIGTERM)
    shown = capfd.readouterr().err
    assert exits == [128 + signal.SIGTERM]
    assert "SIGUSR1: the run stops after this step and saves; repeat to exit" in shown
    assert shown.endswith("\nexited without saving\n")


@pytest.mark.slow
def test_processes_of_torchrun_stop_after_the_same_step(videos: Path, tmp_path: Path) -> None:
    """It forwards the signal to its processes; if it is killed, they stop by themselves."""
    more = ("train.batch_size=2", "train.epochs=3000", "train.save_steps=1000")
    for ends in (subprocess.Popen.terminate, subprocess.Popen.kill):
        folder = tmp_path / ends.__name__
        process = launch(videos, folder, *more, torchrun=TWO_PROCESSES)
        wait_for_step(folder, 3, process)
        ends(process)
        _, err = process.communicate(timeout=25)  # the trainers have its stderr: they have ended
        assert process.returncode != 0
        assert "the same command resumes the run" in err
        assert training(folder)["step"] >= 3
