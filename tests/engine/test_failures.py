"""Failures of devices and processes become errors with a remedy, printed once per command."""

from __future__ import annotations

import re
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
import torch.distributed as dist
from engine_toys import CPU, options

from ffn.cli.program import run
from ffn.engine.distributed import LostProcessError, World
from ffn.engine.failures import OutOfMemoryError, explain_failure, processes
from ffn.engine.signals import EXIT_STOPPED, StoppedError
from ffn.registry import import_extensions

TWO = World(0, 2, torch.device("cpu"))
GLOO = RuntimeError("[/gloo/transport/tcp/pair.cc:545] Read error [127.0.0.1]:10647:\nmore")


def test_errors_of_torch_are_explained() -> None:
    cpu = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")
    for world, error, kind in (
        (CPU, cpu, OutOfMemoryError),
        (CPU, torch.OutOfMemoryError("CUDA out of memory. Tried"), OutOfMemoryError),
        (TWO, GLOO, LostProcessError),
        (TWO, dist.DistBackendError("NCCL error"), LostProcessError),
        (CPU, GLOO, RuntimeError),  # one process cannot lose another
        (TWO, RuntimeError("CUDA error: an illegal memory access"), RuntimeError),
        (TWO, ValueError("gloo"), ValueError),
    ):
        assert type(explain_failure(error, world, "")) is kind


def test_status_and_message_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error in a package of the user has a traceback too."""

    def fail(error: Exception) -> int:
        def command() -> None:
            with processes("ffn x") as world:
                assert (world.rank, world.size) == (0, 1)
                raise error

        return run("ffn x", command)

    assert fail(OSError("disk is full")) == 2
    assert fail(StoppedError("stopped and saved")) == EXIT_STOPPED
    assert capsys.readouterr().err.splitlines() == [
        "ffn x: disk is full",
        "ffn x: stopped and saved",
    ]

    code = "def loss():\n    one, two = [1]  # the line\n"
    (tmp_path / "toy_loss_of_a_user.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    import_extensions(["toy_loss_of_a_user"])
    assert run("ffn x", sys.modules.pop("toy_loss_of_a_user").loss) == 2
    assert "one, two = [1]  # the line" in capsys.readouterr().err


def fail_in_step(own: int, error: Exception, ranks: tuple[int, ...]) -> None:
    def fail(*_: Any, number: int, **__: Any) -> None:
        if number == 1 and own in ranks:
            raise error

    forked.before_each_call("ffn.engine.train_step:TrainStep", "_backward", fail)


STEP = {"owner": "ffn.engine.train_step:TrainStep", "name": "_backward", "nth": 2, "after": 0}
OOM, WRONG, BUG = torch.OutOfMemoryError("CUDA"), ValueError("wrong option"), KeyError("bug")


@pytest.mark.parametrize(
    ("prepare", "status", "message"),
    [
        (partial(fail_in_step, error=OOM, ranks=(1,)), [2, 2], "process 1: a batch needs more"),
        (partial(fail_in_step, error=WRONG, ranks=(0, 1)), [2, 2], "wrong option"),
        (partial(fail_in_step, error=BUG, ranks=(1,)), [2, 1], "process 1: 'bug'"),
        (partial(forked.kill, rank=1, **STEP), [2, -signal.SIGKILL], "process 0: another process"),
    ],
    ids=["oom", "everywhere", "bug", "killed"],
)
@pytest.mark.slow
def test_all_processes_end_with_one_message(
    videos: Path, tmp_path: Path, prepare: Any, status: list[int], message: str
) -> None:
    output, given = tmp_path / "output", options(videos, tmp_path / "run", "train.epochs=50")
    assert forked.train(given, world=2, output=output, prepare=prepare) == status
    text = output.read_text()
    (line,) = re.findall(r"ffn train, (.*)", text)
    assert message in line
    assert text.count("Traceback") == (status == [2, 1])
