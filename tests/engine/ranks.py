"""Gloo processes that run functions together; started once for many tests."""

from __future__ import annotations

import datetime
import io
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from ffn.engine.distributed import World, cleanup

SECONDS = 120.0  # timeout of a function


class Ranks:
    """Gloo processes on this machine.

    Args:
        size: number of processes.
        folder: empty, for the file of the rendezvous.
    """

    def __init__(self, size: int, folder: Path) -> None:
        context = mp.get_context("spawn")
        pipes = [context.Pipe() for _ in range(size)]
        self.pipes = [here for here, _ in pipes]
        self.processes = [
            context.Process(target=_serve, args=(there, rank, size, str(folder / "store")))
            for rank, (_, there) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()
        for _, there in pipes:
            there.close()  # so that the pipe closes with its process

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Run ``function(world, *args)`` on each process; return the results in order of rank."""
        for pipe in self.pipes:
            pipe.send_bytes(_pack((function, args)))
        answers = []
        for rank, pipe in enumerate(self.pipes):
            assert pipe.poll(SECONDS), f"process {rank} did not answer"
            answers.append(_unpack(pipe.recv_bytes()))
        errors = [error for error, _ in answers if error]
        assert not errors, errors[0]
        return [value for _, value in answers]

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send_bytes(_pack(None))
        for process in self.processes:
            process.join(20)
            process.kill()


def _serve(pipe: Connection, rank: int, size: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=SECONDS),
    )
    world = World(rank, size, torch.device("cpu"))
    while (job := _unpack(pipe.recv_bytes())) is not None:
        function, args = job
        try:
            answer = (None, function(world, *args))
        except Exception:
            answer = (traceback.format_exc(), None)
        pipe.send_bytes(_pack(answer))
    cleanup()


def _pack(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _unpack(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)
