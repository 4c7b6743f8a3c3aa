"""Failures of devices and processes become errors with a remedy, printed once per command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from engine_toys import ROOT
from rank_cases import ONE

from ffn.engine.distributed import World
from ffn.engine.failures import (
    EXIT_FAILED,
    LostProcessError,
    OutOfMemoryError,
    explain_failures,
    run_command,
)
from ffn.engine.signals import EXIT_STOPPED, StoppedError
from ffn.registry import import_extensions

TWO = World(0, 2, torch.device("cpu"))
GLOO = RuntimeError("[/gloo/transport/tcp/pair.cc:545] Read error [127.0.0.1]:10647:\nmore")


def test_errors_of_torch_are_explained() -> None:
    cpu = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")
    for world, error, kind in (
        (ONE, cpu, OutOfMemoryError),
        (ONE, torch.OutOfMemoryError("CUDA out of memory. Tried"), OutOfMemoryError),
        (TWO, GLOO, LostProcessError),
        (TWO, dist.DistBackendError("NCCL error"), LostProcessError),
        (ONE, GLOO, RuntimeError),  # one process cannot lose another
        (TWO, RuntimeError("CUDA error: an illegal memory access"), RuntimeError),
        (TWO, ValueError("gloo"), ValueError),
    ):
        with pytest.raises(kind) as found, explain_failures(world, batch_size=6):
            raise error
        assert type(found.value) is kind


def test_status_and_message_of_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(error: Exception) -> int:
        def function(world: World) -> None:
            assert (world.rank, world.size) == (0, 1)
            raise error

        return run_command("x.py", function)

    assert run_command("x.py", lambda world: None) == 0
    assert fail(OSError("disk is full")) == EXIT_FAILED
    assert fail(StoppedError("stopped and saved at step 2")) == EXIT_STOPPED
    assert capsys.readouterr().err.splitlines() == [
        "x.py: disk is full",
        "x.py: stopped and saved at step 2; the same command resumes the run",
    ]
    with pytest.raises(KeyError):  # an error of the program keeps its traceback
        fail(KeyError("bug"))


def test_error_in_a_package_of_the_user_has_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "def loss(world):\n    one, two = [1]  # the line\n"
    (tmp_path / "toy_loss_of_a_user.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    import_extensions(["toy_loss_of_a_user"])
    function = sys.modules.pop("toy_loss_of_a_user").loss
    assert run_command("x.py", function) == EXIT_FAILED
    assert "one, two = [1]  # the line" in capsys.readouterr().err


# Two gloo processes for each case; rank 1 fails, and rank 0 waits in a collective.
CASES = """
import json, os, signal, sys, tempfile, time
import torch, torch.distributed as dist
from ffn.engine import distributed
from ffn.engine.failures import explain_failures, run_command

torch.set_num_threads(1)
store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
torch.cuda.is_available = lambda: False

def oom(): raise torch.OutOfMemoryError("CUDA out of memory")
def bug(): raise KeyError("bug")
def killed(): os.kill(os.getpid(), signal.SIGKILL)
def everywhere(): pass

def train(case, world):
    with explain_failures(world, batch_size=6):
        if case is everywhere: raise ValueError("wrong option")
        if world.rank == 1:
            time.sleep(0.3)
            case()
        distributed.average(torch.ones(1), world)

for attempt, case in enumerate((oom, bug, killed, everywhere)):
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
    children, log = [], tempfile.TemporaryFile("w+")
    for rank in (0, 1):
        child = os.fork()
        if not child:
            os.environ["RANK"] = str(rank)
            os.dup2(log.fileno(), 2)
            os._exit(run_command("x.py", lambda world: train(case, world)))
        children.append(child)
    status = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    log.seek(0)
    lines = [line for line in log.read().splitlines() if not line.startswith("[Gloo]")]
    print(json.dumps([case.__name__, status, lines]), flush=True)
"""


@pytest.mark.slow
def test_all_processes_end_with_one_message() -> None:
    found = subprocess.run(
        [sys.executable, "-c", CASES],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    lines = [json.loads(line) for line in found.stdout.splitlines() if line.startswith('["')]
    results = {case: (status, text) for case, status, text in lines}
    for case, status, message in (
        ("oom", [2, 2], "x.py, process 1: 6 videos need more memory than there is"),
        ("killed", [2, -9], "x.py, process 0: another process of the run has ended"),
        ("everywhere", [2, 2], "wrong option"),
    ):
        assert results[case][0] == status
        (line,) = results[case][1]
        assert message in line
    status, text = results["bug"]
    assert status == [2, 1]
    assert sum("Traceback" in line for line in text) == 1
    assert "KeyError: 'bug'" in "\n".join(text)
