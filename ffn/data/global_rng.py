"""Seed the global random generators for libraries that draw from them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def library_draws(generator: np.random.Generator) -> Iterator[int]:
    """Make the draws of a library inside the context depend on `generator` alone.

    Seeds the global generators of torch (CPU), NumPy and Python with one number from `generator`,
    and restores their states on exit. Generators of CUDA devices are not changed.

    Args:
        generator: Source of one draw.

    Yields:
        The seed; `seed_libraries(seed)` restarts the same draws.
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
    """Seed the global generators of torch (CPU), NumPy and Python.

    Args:
        seed: In [0, 2**32).
    """
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed every CUDA device
    np.random.seed(seed)
    random.seed(seed)
