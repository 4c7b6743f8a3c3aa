"""One process or many: who am I, who speaks, and the few collectives that training needs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from ffn.engine.rendezvous import fresh_store

Result = TypeVar("Result")


class LostProcessError(RuntimeError):
    """Another process of the run ended, or did not answer in time."""


PATIENCE = 1800.0  # seconds


@dataclass(frozen=True)
class World:
    """The processes of a run.

    Attributes:
        rank: this process, 0 speaks and writes.
        size: number of processes.
        device: where this process computes.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process prints and writes files."""
        return self.rank == 0


@contextmanager
def processes(patience: float = 0.0) -> Iterator[World]:
    """Join the processes that ``torchrun`` started, or run alone; leave the group at the end.

    NCCL with one CUDA device per process, gloo on CPU.

    Args:
        patience: seconds that one process may be late before the others give up, at least
            `PATIENCE`. It is longer than a process waits for its data, so that the one that knows
            which video is to blame says so before the others end the run.
    """
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    started_here = size > 1 and not dist.is_initialized()
    if started_here:
        timeout = timedelta(seconds=max(PATIENCE, patience))
        backend = "nccl" if device.type == "cuda" else "gloo"
        store, rank, size = fresh_store(timeout)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    try:
        yield World(rank, size, device)
    except BaseException:
        # NCCL finishes what is under way before it lets go, and the others may be waiting for this
        # process in it: the group is left to end with the process, by :func:`end`.
        if started_here and device.type == "cpu":
            leave()
        raise
    if started_here:
        leave()


def end(status: int) -> int:
    """Exit at once if the group could not be left; else return the exit status."""
    if dist.is_available() and dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


@contextmanager
def company(world: World) -> Iterator[None]:
    """Explain a failure to reach the other processes.

    Raises:
        LostProcessError: one of them has ended, or is too late.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        from_torch = type(error) is RuntimeError and ("gloo" in text or "NCCL" in text)
        if world.size == 1 or not (from_torch or isinstance(error, dist.DistError)):
            raise
        raise LostProcessError(
            "another process of the run has ended or did not answer; it has said why, or torchrun "
            f"does ({text.splitlines()[0][:200]})"
        ) from error


def leave() -> None:
    """Leave the group, once gloo's threads have let go of the last collective's tensors.

    They need the interpreter's lock for that, and old torch (2.6; not 2.15) holds it while it waits
    for the threads (https://github.com/pytorch/pytorch/pull/154976). Two processes that made, used
    and left one group after another hung at the fourth; with the pause, not once in 400.
    """
    if dist.get_backend() == "gloo":
        time.sleep(0.1)
    dist.destroy_process_group()


def average(values: torch.Tensor, world: World) -> torch.Tensor:
    """The mean of a tensor over all processes."""
    if world.size > 1:
        values = values.clone()
        dist.all_reduce(values)
        values /= world.size
    return values


def any_of(claims: Sequence[bool | torch.Tensor], world: World) -> list[bool]:
    """For each claim whether it holds on any process; waits for the device once.

    Args:
        claims: equally many on every process; tensors of one element may be on the device.
        world: the processes.
    """
    found = torch.stack([torch.as_tensor(claim, device=world.device).int() for claim in claims])
    if world.size > 1:
        dist.all_reduce(found, dist.ReduceOp.MAX)
    return [bool(claim) for claim in found.tolist()]


def on_main(function: Callable[[], Result], world: World) -> Result:
    """Call a function on the main process alone, while the others wait.

    Returns:
        What it returned, on every process; it must be picklable.

    Raises:
        Exception: what it raised, on every process. `told` is true where it needs no telling.
    """
    outcome: list[Any] = [None, None]
    if world.is_main:
        try:
            outcome[0] = function()
        except Exception as error:
            outcome[1] = error
    if world.size > 1:
        dist.broadcast_object_list(outcome)
    result, error = outcome
    if error is not None:
        error.told = not world.is_main
        raise error
    return result


def gather(value: Any, world: World) -> list[Any]:
    """A small object of every process, in order of rank."""
    if world.size == 1:
        return [value]
    values: list[Any] = [None] * world.size
    dist.all_gather_object(values, value)
    return values


def average_gradients(parameters: Iterable[nn.Parameter], world: World) -> None:
    """Average gradients over all processes in one collective.

    For steps with several backward passes over different parameters, which
    ``DistributedDataParallel`` does not know how to count.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if world.size == 1 or not gradients:
        return
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    flat /= world.size
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def average_buffers(module: nn.Module, world: World) -> None:
    """Average floating-point buffers, the running statistics of norms, over all processes.

    Each process normalises with its own batch; after this all evaluate the same network.
    """
    if world.size == 1:
        return
    for buffer in module.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer /= world.size
