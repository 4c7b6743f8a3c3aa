"""One process or many: who am I, who speaks, and the few collectives that training needs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


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
def processes() -> Iterator[World]:
    """Join the processes that ``torchrun`` started, or run alone; leave the group at the end.

    NCCL with one CUDA device per process, gloo on CPU.
    """
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    started_here = size > 1 and not dist.is_initialized()
    if started_here:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(rank, size, device)
    finally:
        if started_here:
            leave()


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


def barrier(world: World) -> None:
    """Wait for all processes."""
    if world.size > 1:
        dist.barrier()
