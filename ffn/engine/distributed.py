"""The processes of a run, and the collectives that training and testing need."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from ffn.data.workers import end_with_parent
from ffn.engine.freezing import frozen_buffers
from ffn.evaluation.collect import gather

Result = TypeVar("Result")

DEFAULT_TIMEOUT = 1800.0  # seconds


class LostProcessError(RuntimeError):
    """Another process of the run has ended, or did not answer in time."""


class ReplicaError(RuntimeError):
    """The processes of a run hold different weights."""


@dataclass(frozen=True)
class World:
    """The processes of a run.

    Attributes:
        rank: of this process.
        size: number of processes.
        device: of this process's tensors.
        store: key-value store of ``torchrun``, which outlives the processes; else None.
    """

    rank: int
    size: int
    device: torch.device
    store: dist.Store | None = field(default=None, repr=False, compare=False)

    @property
    def is_main(self) -> bool:
        """Whether this process prints and writes files."""
        return self.rank == 0


def init_distributed(timeout: float = 0.0, device: torch.device | None = None) -> World:
    """Join the processes that ``torchrun`` started, or run alone; end with :func:`cleanup`.

    NCCL with one CUDA device per process, gloo on CPU.

    Args:
        timeout: seconds to wait for another process in a collective, at least `DEFAULT_TIMEOUT`.
            Pass more than the timeout of the data loader, so that the process with the slow video
            fails first and names the video.
        device: of this process; "cuda" without a number is that of its local rank. Default: CUDA if
            available, else the CPU.

    Note:
        ``torchrun`` keeps one store over its restarts (torch 2.6 to 2.15), with the addresses of
        processes that have ended, hence a prefix: the count of restarts, which nodes do not share.

    Raises:
        LostProcessError: the processes did not connect.
        ValueError: this machine has more processes than devices, or restarts cannot work.
    """
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if device is None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        number = int(os.environ.get("LOCAL_RANK", 0)) if device.index is None else device.index
        found = torch.cuda.device_count()
        if number >= found:
            raise ValueError(
                f"no CUDA device for process {number}, counted from 0: torch finds {found} on this "
                f"machine. Use torchrun --nproc_per_node={found}"
            )
        device = torch.device("cuda", number)
        torch.cuda.set_device(device)
    store, shares_store = None, os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if size > 1 and not dist.is_initialized():
        restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
        if shares_store and restarts and os.environ.get("GROUP_WORLD_SIZE", "1") != "1":
            raise ValueError(
                "torchrun has --max-restarts and several nodes, whose processes cannot connect "
                "again; set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, or leave out --max-restarts"
            )
        limit = timedelta(seconds=max(DEFAULT_TIMEOUT, timeout))
        backend = "nccl" if device.type == "cuda" else "gloo"
        try:
            store, rank, size = next(rendezvous("env://", timeout=limit))
            if shares_store:
                attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
                store = dist.PrefixStore(attempt, store)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
        except RuntimeError as error:
            raise LostProcessError(
                f"the processes did not connect ({str(error).partition(chr(10))[0][:200]})"
            ) from error
    if dist.is_torchelastic_launched():
        end_with_parent()
    return World(rank, size, device, store if shares_store else None)


def cleanup() -> None:
    """Destroy the process group, if there is one.

    Note:
        gloo's threads need the interpreter's lock to release the tensors of the last collective.
        torch 2.6 (not 2.15) holds the lock while it waits for these threads
        (https://github.com/pytorch/pytorch/pull/154976), hence the pause.
    """
    if dist.is_initialized():
        if dist.get_backend() == "gloo":
            time.sleep(0.1)
        dist.destroy_process_group()


def any_of(flags: Sequence[bool | Tensor], world: World) -> list[bool]:
    """For each flag, whether it is true on any process; synchronizes with the device once.

    Each process has the same number of flags; tensors of one element may be on the device.
    """
    found = torch.stack([torch.as_tensor(flag, device=world.device).int() for flag in flags])
    if world.size > 1:
        dist.all_reduce(found, dist.ReduceOp.MAX)
    return [bool(flag) for flag in found.tolist()]


def on_main(function: Callable[[], Result], world: World) -> Result:
    """Call a function on the main process only; the other processes wait.

    Returns:
        Its result, on every process; must be picklable.

    Raises:
        Exception: the exception of the function, on every process.
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
        raise error
    return result


def average_gradients(parameters: Iterable[nn.Parameter], world: World) -> None:
    """Average gradients over all processes; one that a process does not have counts as zeros.

    Parameters without a gradient on any process stay without. For steps with several backward
    passes over different parameters, which ``DistributedDataParallel`` does not support.
    """
    if world.size == 1:
        return
    parameters = [p for p in parameters if p.requires_grad]
    missing = {i for i, p in enumerate(parameters) if p.grad is None}
    used = torch.ones(len(parameters), dtype=torch.uint8, device=world.device)
    for i in missing:
        used[i], parameters[i].grad = 0, torch.zeros_like(parameters[i])
    gradients = [p.grad for p in parameters]
    works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
    for work in [*works, dist.all_reduce(used, dist.ReduceOp.MAX, async_op=True)]:
        work.wait()
    torch._foreach_div_(gradients, world.size)
    for i in missing:
        if not used[i]:
            parameters[i].grad = None


def gather_rows(rows: Tensor) -> tuple[Tensor, int]:
    """Rows (N, …) of all processes in order of rank, and the place of the first own one.

    The processes may have different numbers of rows (B, …). The gradient of a row is the sum over
    the losses of all processes, so that the mean gradient is that of their mean loss.
    """
    sizes = gather(len(rows))
    if len(sizes) == 1:
        return rows, 0
    missing = rows.new_zeros(max(sizes) - len(rows), *rows.shape[1:])
    every = _AllGather.apply(torch.cat([rows, missing]))
    parts = [part[:size] for part, size in zip(every, sizes, strict=True)]
    return torch.cat(parts), sum(sizes[: dist.get_rank()])


class _AllGather(torch.autograd.Function):
    """Stack the tensors of all processes; the one of torch is deprecated from 2.15 on."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(every, own)
        return torch.stack(every)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient[dist.get_rank()]


@torch.no_grad()
def average_buffers(module: nn.Module, world: World) -> None:
    """Average floating-point buffers, the running statistics of norms, over all processes.

    Each process normalizes with its own batch; afterwards all evaluate the same network. The
    statistics of frozen norms are equal, and a mean over three processes would round them.
    """
    if world.size == 1:
        return
    frozen = frozen_buffers(module)
    for buffer in module.buffers():
        if buffer.is_floating_point() and id(buffer) not in frozen:
            dist.all_reduce(buffer)
            buffer /= world.size


def check_replicas(model: nn.Module, world: World) -> None:
    """Check that the parameters of all processes are equal, by a checksum.

    Buffers are not compared: running statistics differ between processes.

    Raises:
        ReplicaError: on every process; names the ranks.
    """
    checksum = 0
    for parameter in model.parameters() if world.size > 1 else ():
        data = parameter.detach().cpu().contiguous().flatten().view(torch.uint8)
        checksum = zlib.crc32(data.numpy(), checksum)
    every = gather(checksum)
    ranks = [str(rank) for rank, found in enumerate(every) if found != every[0]]
    if ranks:
        raise ReplicaError(
            f"the weights on rank(s) {', '.join(ranks)} differ from those on rank 0. Resume from "
            "the newest checkpoint; if it happens again, look for code that changes weights on "
            "some processes only, or for a faulty device"
        )
