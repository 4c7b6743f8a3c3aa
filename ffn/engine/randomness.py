"""Where a run's randomness comes from: the seed and the step, so that nothing has to be saved."""

from __future__ import annotations

import os

import numpy as np
import torch


def seed_step(seed: int, step: int, rank: int) -> None:
    """Begin the random numbers of a step: those of dropout and the like.

    They depend on neither what came before nor how often the run was interrupted.

    Args:
        seed: of the run.
        step: optimiser steps done, over all epochs.
        rank: of the process; dropout differs between processes.
    """
    entropy = np.random.SeedSequence([seed, step, rank])
    torch.manual_seed(int(entropy.generate_state(1, np.uint64)[0] >> 1))


def make_deterministic() -> None:
    """Let torch use only algorithms whose results are the same every time, for this process.

    An operation that has none raises a RuntimeError of torch's when it is reached: on CUDA that is
    so for the gradient of 3-D pooling. cuBLAS needs its workspace fixed before CUDA starts.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
