"""Random numbers of a sample for libraries that draw from global generators."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def library_draws(generator: np.random.Generator) -> Iterator[int]:
    """Let what a library draws inside depend on `generator` alone; outside nothing changes.

    Seeds the global generators of torch (CPU), numpy and Python with one number from `generator`,
    and puts their states back. The generators of CUDA devices are not touched.

    Args:
        generator: Source of one draw.

    Yields:
        The number; :func:`seed_libraries` with it starts the same draws again.
    """
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    seed = int(generator.integers(2**32))
    seed_libraries(seed)
    try:
        yield seed
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def seed_libraries(seed: int) -> None:
    """Seed the global generators of torch (CPU), numpy and Python.

    Args:
        seed: In [0, 2**32).
    """
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed every CUDA device
    np.random.seed(seed)
    random.seed(seed)
