"""A store for the processes of one attempt, also after ``torchrun`` has restarted them."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

POLL_INTERVAL = 0.01  # seconds


def attempt_store(timeout: timedelta) -> tuple[dist.Store, int, int]:
    """Return a store without the keys of previous attempts.

    ``torchrun`` keeps one store over its restarts (torch 2.6 to 2.15). It holds the addresses of
    processes that have ended, and new processes would try to connect to them until the timeout. The
    restart count of ``torchrun`` cannot name an attempt: it differs between nodes, because only a
    node whose own process failed increments it.

    Rank 0 therefore chooses an id. Each other process sends a request with a unique id, so that
    only a process of this attempt can have answered it. Rank 0 answers every request, including
    those left by a previous attempt, until all ranks have acknowledged.

    Args:
        timeout: how long to wait for the other processes.

    Returns:
        The store, the rank and the number of processes, for ``init_process_group``.

    Raises:
        torch.distributed.DistError: a process did not join in time.
    """
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    own = uuid.uuid4().hex
    if rank:
        store.set(f"request/{rank}", own)
        store.wait([f"answer/{own}"], timeout)
        attempt = store.get(f"answer/{own}").decode()
        store.set(f"acknowledged/{attempt}/{rank}", "")
        return dist.PrefixStore(attempt, store), rank, size

    deadline = time.monotonic() + timeout.total_seconds()
    missing = set(range(1, size))
    while missing:
        for other in [*missing]:
            if store.check([f"request/{other}"]):
                store.set(f"answer/{store.get(f'request/{other}').decode()}", own)
            if store.check([f"acknowledged/{own}/{other}"]):
                missing.discard(other)
        if missing and time.monotonic() > deadline:
            raise dist.DistError(f"processes {sorted(missing)} did not join in {timeout}")
        time.sleep(POLL_INTERVAL)
    return dist.PrefixStore(own, store), rank, size
