"""How the processes of a run find each other, also when they are started again."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

PAUSE = 0.01  # seconds between looks


def fresh_store(timeout: timedelta) -> tuple[dist.Store, int, int]:
    """The store that the processes share, without what died before them left in it.

    ``torchrun`` keeps one store through its restarts (torch 2.6 to 2.15), and in it lie the
    addresses of the processes that it has ended: those that come now would try to reach them, and
    wait until the timeout. Here each start agrees on a name of its own first.

    Args:
        timeout: how long one process waits for the others.

    Returns:
        The store, the rank and the number of processes, for ``init_process_group``.

    Raises:
        torch.distributed.DistError: a process does not come in time.
    """
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    return dist.PrefixStore(agree_on_name(store, rank, size, timeout), store), rank, size


def agree_on_name(store: dist.Store, rank: int, size: int, timeout: timedelta) -> str:
    """A name that rank 0 chooses, and that all processes of one start know of it.

    A process greets with a word that nobody used before, so that the answer to it can only come
    from the living; rank 0 answers every greeting, those of the dead too, until all have thanked.

    Args:
        store: shared, perhaps with words of the dead in it.
        rank: of this process.
        size: number of processes.
        timeout: how long to wait for the others.

    Raises:
        torch.distributed.DistError: a process does not come in time.
    """
    own = uuid.uuid4().hex
    if rank:
        store.set(f"greeting/{rank}", own)
        store.wait([f"answer/{own}"], timeout)
        name = store.get(f"answer/{own}").decode()
        store.set(f"thanks/{name}/{rank}", "")
        return name

    deadline, absent, answered = time.monotonic() + timeout.total_seconds(), set(range(1, size)), {}
    while absent:
        for other in sorted(absent):
            if store.check([f"greeting/{other}"]):
                word = store.get(f"greeting/{other}").decode()
                if answered.get(other) != word:
                    store.set(f"answer/{word}", own)
                    answered[other] = word
            if store.check([f"thanks/{own}/{other}"]):
                absent.discard(other)
        if absent and time.monotonic() > deadline:
            raise dist.DistError(f"processes {sorted(absent)} did not come in {timeout}")
        time.sleep(PAUSE)
    return own
