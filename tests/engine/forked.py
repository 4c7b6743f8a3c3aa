"""Processes forked from one that has imported everything: runs of commands, and gloo ranks."""

from __future__ import annotations

import functools
import io
import multiprocessing
import os
import pkgutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ffn.engine.distributed import World, cleanup

ATTEMPTS = count()
SECONDS = 120  # for all processes of a run to end
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["ffn.engine.build", "ffn.engine.loop", "ffn.evaluation", "av"])


class Ranks:
    """Gloo processes that run functions together; started once for many tests.

    Args:
        size: number of processes.
        folder: empty, for the file of the rendezvous.
    """

    def __init__(self, size: int, folder: Path) -> None:
        self.pools = [
            ProcessPoolExecutor(1, CONTEXT, _join, (rank, size, f"file://{folder}/store"))
            for rank in range(size)
        ]

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Run ``function(world, *args)`` on each process; return the results in order of rank."""
        jobs = [pool.submit(_call, function, args) for pool in self.pools]
        files = [io.BytesIO(job.result(SECONDS)) for job in jobs]
        return [torch.load(file, weights_only=False) for file in files]

    def close(self) -> None:
        for pool in self.pools:
            pool.submit(cleanup)
        for pool in self.pools:
            pool.shutdown()


def _join(rank: int, size: int, store: str) -> None:
    torch.set_num_threads(1)
    limit = timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=limit)


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    file = io.BytesIO()
    world = World(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    torch.save(function(world, *args), file)
    return file.getvalue()


def train(
    options: list[str],
    *,
    command: str = "train",
    world: int = 1,
    output: Path = Path(os.devnull),
    prepare: Callable[[int], None] | None = None,
) -> list[int]:
    """Train; returns the exit status of each process, negative if a signal ended it.

    Args:
        options: as on the command line.
        command: of ffn, if it is another one.
        world: processes. They find each other in one store for all runs, as that of torchrun.
        output: file for what they print.
        prepare: called in each process with its rank; picklable.
    """
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_store().port)}
    where |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "WORLD_SIZE": str(world)}
    where["TORCHELASTIC_RESTART_COUNT"] = str(next(ATTEMPTS))
    arguments = [command, str(Path(__file__).with_name("empty.yaml")), *options]
    processes = [
        CONTEXT.Process(
            target=_run, args=(arguments, {**where, "RANK": str(rank)}, output, prepare)
        )
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    deadline = time.monotonic() + SECONDS
    for process in processes:
        process.join(max(0, deadline - time.monotonic()))
    late = [process for process in processes if process.exitcode is None]
    for process in late:
        process.kill()
    assert not late, output.read_text()[-3000:]
    return [process.exitcode for process in processes]


@functools.cache
def _store() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def _run(
    arguments: list[str],
    environment: dict[str, str],
    output: Path,
    prepare: Callable[[int], None] | None,
) -> None:
    from ffn.cli import main

    torch.set_num_threads(1)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update(environment)
    if prepare is not None:
        prepare(int(environment["RANK"]))
    sys.exit(main(arguments))


def before_each_call(owner: str, name: str, function: Callable[..., None]) -> None:
    """Call a function before each call of another, with its arguments.

    Args:
        owner: module, or class as "package.module:Class".
        name: of the other function in it.
        function: takes the same arguments.
    """
    target = pkgutil.resolve_name(owner)
    original = getattr(target, name)

    def both(*given: Any, **more: Any) -> Any:
        function(*given, **more)
        return original(*given, **more)

    setattr(target, name, both)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def kill(
    own: int, *, rank: int, owner: str, name: str, nth: int, after: float, worker: bool = False
) -> None:
    """Kill a process, or a loader worker of it, a time after a function is called the nth time."""
    calls = count(1)

    def die() -> None:
        time.sleep(after)
        os.kill(children(os.getpid())[0] if worker else os.getpid(), signal.SIGKILL)

    def arm(*given: Any, **more: Any) -> None:
        if next(calls) == nth:
            threading.Thread(target=die, daemon=True).start()

    if own == rank:
        before_each_call(owner, name, arm)
