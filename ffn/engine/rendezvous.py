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

    Args:
        timeout: how long to wait for the other processes.

    Returns:
        The store, the rank and the number of processes, for ``init_process_group``.

    Raises:
        torch.distributed.DistError: a process did not join in time.
    """
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    return dist.PrefixStore(agree_on_attempt(store, rank, size, timeout), store), rank, size


def agree_on_attempt(store: dist.Store, rank: int, size: int, timeout: timedelta) -> str:
    """Return an id that rank 0 chooses for this attempt and sends to all its processes.

    Each process sends a request with a unique id, so that only a process of this attempt can have
    answered it. Rank 0 answers every request, including those left by a previous attempt, until all
    ranks have acknowledged.

    Args:
        store: shared; may hold keys left by previous attempts.
        rank: of this process.
        size: number of processes.
        timeout: how long to wait for the other processes.

    Raises:
        torch.distributed.DistError: a process did not join in time.
    """
    own = uuid.uuid4().hex
    if rank:
        store.set(f"request/{rank}", own)
        try:
            store.wait([f"answer/{own}"], timeout)
        except dist.DistError as error:
            raise dist.DistError(f"process 0 did not answer in {timeout} ({error})") from error
        attempt = store.get(f"answer/{own}").decode()
        store.set(f"acknowledged/{attempt}/{rank}", "")
        return attempt

    deadline = time.monotonic() + timeout.total_seconds()
    missing, answered = set(range(1, size)), {}
    while missing:
        for other in sorted(missing):
            if store.check([f"request/{other}"]):
                request = store.get(f"request/{other}").decode()
                if answered.get(other) != request:
                    store.set(f"answer/{request}", own)
                    answered[other] = request
            if store.check([f"acknowledged/{own}/{other}"]):
                missing.discard(other)
        if missing and time.monotonic() > deadline:
            raise dist.DistError(f"processes {sorted(missing)} did not join in {timeout}")
        time.sleep(POLL_INTERVAL)
    return own
