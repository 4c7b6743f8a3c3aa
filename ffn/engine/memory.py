"""How much memory a process of a run has taken."""

from __future__ import annotations

import sys

import torch


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
