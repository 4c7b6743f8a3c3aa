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
    REPORTED,
    LostProcessError,
    OutOfMemoryError,
    explain_failures,
    run_command,
)
from ffn.engine.signals import EXIT_STOPPED, StoppedError
from ffn.registry import import_extensions

TWO = World(0, 2, torch.device("cpu"))
GLOO = RuntimeError("[/gloo/transport/tcp/pair.cc:545] Read error [127.0.0.1]:10647:\nmore")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
            OutOfMemoryError,
            r"6 videos need more memory than there is: raise train\.grad_accum_steps",
        ),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            OutOfMemoryError,
            r"lower train\.batch_size \(CUDA out of memory",
        ),
        (GLOO, LostProcessError, r"another process .* \(\[/gloo/transport/tcp/pair\.cc:545\]"),
        (dist.DistBackendError("NCCL error"), LostProcessError, "another process"),
        (RuntimeError("CUDA error: an illegal memory access"), RuntimeError, "^CUDA error"),
        (ValueError("gloo"), ValueError, "^gloo$"),
    ],
)
def test_errors_of_torch_are_explained(
    error: Exception, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as found, explain_failures(TWO, batch_size=6):
        raise error
    assert type(found.value) is kind
    assert (found.value is error) == (kind not in REPORTED or kind is ValueError)


def test_one_process_cannot_lose_another() -> None:
    with pytest.raises(RuntimeError, match="gloo") as found, explain_failures(ONE, batch_size=6):
        raise GLOO
    assert found.value is GLOO


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

    shown = capsys.readouterr().err
    assert "one, two = [1]  # the line" in shown
    assert shown.endswith("x.py: not enough values to unpack (expected 2, got 1)\n")


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


LEFT_WORKER = """
import multiprocessing, signal, sys, time
from ffn.engine.failures import run_command

def fail(world):
    multiprocessing.Process(target=time.sleep, args=(60,), daemon=True).start()
    signal.signal(signal.SIGCHLD, lambda *_: 1 / 0)  # torch's handler raises an error too
    raise ValueError("wrong option")

if __name__ == "__main__":
    sys.exit(run_command("x.py", fail))
"""


def test_workers_that_the_exit_ends_are_no_errors() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT_WORKER],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (EXIT_FAILED, "x.py: wrong option\n")


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
def lost(): raise RuntimeError("gloo timed out")
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

for case in (oom, lost, bug, killed, everywhere):
    for keeps_group in (False, True):  # an NCCL group cannot be destroyed after a failure
        started, children, log = time.monotonic(), [], tempfile.TemporaryFile("w+")
        for rank in (0, 1):
            child = os.fork()
            if not child:
                os.environ["RANK"] = str(rank)
                os.dup2(log.fileno(), 2)
                if keeps_group: distributed.leave = lambda: None
                try:
                    status = run_command("x.py", lambda world: train(case, world))
                except BaseException:
                    sys.__excepthook__(*sys.exc_info())
                    status = 1
                sys.stderr.flush()
                os._exit(status)
            children.append(child)
        status = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        log.seek(0)
        lines = [line for line in log.read().splitlines() if not line.startswith("[Gloo]")]
        print(json.dumps([case.__name__, status, time.monotonic() - started, lines]), flush=True)
"""


@pytest.fixture(scope="module")
def failed() -> dict[str, list]:
    """Exit statuses, seconds and messages of each case; twice per case."""
    found = subprocess.run(
        [sys.executable, "-c", CASES],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    results: dict[str, list] = {}
    for line in found.stdout.splitlines():
        if line.startswith("["):
            name, *result = json.loads(line)
            results.setdefault(name, []).append(result)
    return results


@pytest.mark.parametrize(
    ("case", "statuses", "message"),
    [
        ("oom", [2, 2], "x.py, process 1: 6 videos need more memory than there is"),
        ("lost", [2, 2], "x.py, process 1: another process of the run has ended"),
        ("killed", [2, -9], "x.py, process 0: another process of the run has ended"),
        ("everywhere", [2, 2], "wrong option"),
    ],
)
def test_all_processes_end_with_one_message(
    failed: dict[str, list], case: str, statuses: list[int], message: str
) -> None:
    assert len(failed[case]) == 2
    for status, seconds, lines in failed[case]:
        assert status == statuses
        assert seconds < 30
        (line,) = lines
        assert message in line


def test_a_bug_of_one_process_has_one_traceback(failed: dict[str, list]) -> None:
    for status, seconds, lines in failed["bug"]:
        assert status == [2, 1]
        assert seconds < 30
        assert sum("Traceback" in line for line in lines) == 1
        assert "KeyError: 'bug'" in lines[-1]
        assert not any(line.startswith("x.py") for line in lines)
