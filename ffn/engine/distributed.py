"""The processes of a run, and the collectives that training and testing need."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ffn.engine.freezing import frozen_buffers
from ffn.engine.rendezvous import attempt_store
from ffn.engine.signals import stop_with_parent

Result = TypeVar("Result")

DEFAULT_TIMEOUT = 1800.0  # seconds
BUCKET_BYTES = 25 * 2**20  # as in DistributedDataParallel
CHUNK = 2**16  # elements of a tensor that are hashed at once
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


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


@contextmanager
def processes(timeout: float = 0.0, device: torch.device | None = None) -> Iterator[World]:
    """Join the processes that ``torchrun`` started, or run alone; leave the group at the end.

    NCCL with one CUDA device per process, gloo on CPU.

    Args:
        timeout: seconds to wait for another process in a collective, at least `DEFAULT_TIMEOUT`.
            Pass more than the timeout of the data loader, so that the process with the slow video
            fails first and names the video.
        device: of this process; "cuda" without a number is that of its local rank. Default: CUDA if
            available, else the CPU.

    Raises:
        torch.distributed.DistError: the processes did not connect.
        ValueError: this machine has more processes than devices.
    """
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    store = None
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
    started_here = size > 1 and not dist.is_initialized()
    if started_here:
        limit = timedelta(seconds=max(DEFAULT_TIMEOUT, timeout))
        backend = "nccl" if device.type == "cuda" else "gloo"
        store, rank, size = attempt_store(limit)
        try:
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
        except RuntimeError as error:
            cause = str(error).partition("\n")[0][:200]
            raise dist.DistError(f"the processes of the run did not connect ({cause})") from error
    by_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if by_torchrun:
        stop_with_parent()
    try:
        yield World(rank, size, device, store if by_torchrun else None)
    except BaseException:
        # Destroying an NCCL group waits for its pending collectives, which may never complete
        # after a failure: `ffn.engine.failures.run_command` ends the process instead.
        if started_here and device.type == "cpu":
            leave()
        raise
    if started_here:
        leave()


def leave() -> None:
    """Destroy the process group, after gloo's threads have released the last collective's tensors.

    The threads need the interpreter's lock for that. torch 2.6 (not 2.15) holds the lock while it
    waits for the threads (https://github.com/pytorch/pytorch/pull/154976): two processes that
    created and destroyed groups in a loop deadlocked at the fourth. With the pause they did not in
    400.
    """
    if dist.get_backend() == "gloo":
        time.sleep(0.1)
    dist.destroy_process_group()


def average(values: Tensor, world: World) -> Tensor:
    """Average a tensor over all processes."""
    if world.size > 1:
        values = values.clone()
        dist.all_reduce(values)
        values /= world.size
    return values


def any_of(flags: Sequence[bool | Tensor], world: World) -> list[bool]:
    """For each flag, whether it is true on any process; synchronizes with the device once.

    Args:
        flags: the same number on every process; tensors of one element may be on the device.
        world: the processes.
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


def gather(value: Any, world: World) -> list[Any]:
    """Gather a small picklable object from every process, in order of rank."""
    if world.size == 1:
        return [value]
    values: list[Any] = [None] * world.size
    dist.all_gather_object(values, value)
    return values


def average_gradients(parameters: Iterable[nn.Parameter], world: World) -> None:
    """Average gradients over all processes, in buckets of `BUCKET_BYTES`.

    For steps with several backward passes over different parameters, which
    ``DistributedDataParallel`` does not support.
    """
    if world.size == 1:
        return
    for bucket in _buckets([p.grad for p in parameters if p.grad is not None]):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        dist.all_reduce(flat)
        flat /= world.size
        _copy_from(flat, bucket)


@torch.no_grad()
def broadcast_parameters(model: nn.Module, world: World) -> None:
    """Copy the parameters of rank 0 to all processes, as ``DistributedDataParallel`` does."""
    if world.size == 1:
        return
    for bucket in _buckets(list(model.parameters())):
        flat = torch.cat([parameter.flatten() for parameter in bucket])
        dist.broadcast(flat, 0)
        _copy_from(flat, bucket)


def _buckets(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Split tensors into lists of at most `BUCKET_BYTES`, or of one larger tensor."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and size + tensor.nbytes > BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.nbytes
    if bucket:
        yield bucket


def _copy_from(flat: Tensor, tensors: list[Tensor]) -> None:
    for tensor, values in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(values.view_as(tensor))


def check_replicas(model: nn.Module, world: World) -> None:
    """Check that the parameters of all processes are equal, bit for bit, in one collective.

    Buffers are not compared: running statistics differ between processes.

    Each process sends 8 bytes per tensor, a hash of its bits. A difference in a single element is
    always found; differences in several elements of a tensor could cancel only by chance.

    Args:
        model: not wrapped in DDP; every process calls this.
        world: the processes.

    Raises:
        ReplicaError: on every process; names the first tensor that differs, and the ranks.
    """
    if world.size == 1:
        return
    tensors = dict(model.named_parameters())
    if not tensors:
        return
    own = torch.stack([fingerprint(tensor).to(world.device) for tensor in tensors.values()])
    every = gather_rows(own).tolist()
    differing = [name for name, *row in zip(tensors, *every, strict=True) if len({*row}) > 1]
    if differing:
        first = list(tensors).index(differing[0])
        ranks = [rank for rank, row in enumerate(every) if row[first] != every[0][first]]
        raise ReplicaError(
            f"{len(differing)} of {len(tensors)} tensors differ between processes, first "
            f"{differing[0]}: rank(s) {', '.join(map(str, ranks))} from rank 0; weights must "
            "be equal on all processes. Resume from the newest checkpoint; if it happens again, "
            "look for code that changes weights on some processes only, or for a faulty device"
        )


@torch.no_grad()
def fingerprint(tensor: Tensor) -> Tensor:
    """Hash the bits of a tensor into one int64 element; the result is the same on every device.

    Sums of integers modulo 2^64 do not depend on their order. All factors are odd, so that a change
    of one element changes the sum.
    """
    bits = tensor.view(INTEGERS[tensor.element_size()]).flatten()
    factors = 1 + 2 * torch.arange(min(CHUNK, len(bits)), device=tensor.device)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for part in bits.split(CHUNK):
        total = 31 * total + (part * factors[: len(part)]).sum()
    return total


def gather_rows(rows: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Stack a tensor of every process in order of rank; the result is equal on all of them."""
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, rows, group)
    return torch.stack(parts)


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
