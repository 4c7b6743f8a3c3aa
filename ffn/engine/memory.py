"""How much memory a process of a run has taken, and what to say when there is no more."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class OutOfMemory(RuntimeError):
    """A batch does not fit; the message says what makes it smaller."""


@contextmanager
def fitting(clips: int) -> Iterator[None]:
    """Say what to change if the memory of the device, or of the machine, does not suffice.

    Args:
        clips: videos in a micro-batch of this process.

    Raises:
        OutOfMemory: in place of torch's errors.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not (isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in text):
            raise
        raise OutOfMemory(
            f"a micro-batch of {clips} videos needs more memory than there is: raise "
            "train.grad_accum_steps, set train.views=sequential or "
            "train.activation_checkpointing=true, or lower train.batch_size "
            f"({text.splitlines()[0][:200]})"
        ) from error


def memory_mib(device: torch.device) -> float:
    """The most memory this process has held so far, in MiB.

    On CUDA what tensors took there (``torch.cuda.max_memory_allocated``; the allocator reserves
    more). On a CPU the process's largest resident set, without the workers of the data loader;
    NaN where the system does not tell (Windows).
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        import resource
    except ImportError:
        return float("nan")
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest / (2**20 if sys.platform == "darwin" else 2**10)  # bytes there, KiB elsewhere
