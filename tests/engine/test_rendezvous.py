"""Restarted processes agree on an attempt, with keys of previous attempts in the store."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from ffn.engine.rendezvous import agree_on_attempt

TIMEOUT = timedelta(seconds=20)


@pytest.fixture
def store() -> dist.Store:
    return dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)


def join(store: dist.Store, ranks: list[int], size: int) -> list[str]:
    """Start the ranks in this order; return the attempt that each of them received."""
    found: dict[int, str] = {}

    def run(rank: int) -> None:
        own = store if rank == ranks[0] else dist.TCPStore("127.0.0.1", store.port, None, False)
        found[rank] = agree_on_attempt(own, rank, size, TIMEOUT)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return [found[rank] for rank in sorted(found)]


@pytest.mark.parametrize("ranks", [[0], [0, 1], [2, 0, 1], [3, 2, 1, 0]])
def test_all_ranks_agree_and_each_attempt_is_new(store: dist.Store, ranks: list[int]) -> None:
    attempts = [join(store, ranks, len(ranks)) for _ in range(5)]

    assert all(len(set(found)) == 1 and len(found) == len(ranks) for found in attempts)
    assert len({found[0] for found in attempts}) == 5


@pytest.mark.slow
def test_keys_of_a_previous_attempt_are_not_taken_for_new_ones(store: dist.Store) -> None:
    """The processes of the previous attempt ended after their requests; rank 1 starts late."""
    store.set("request/1", "old")
    store.set("request/2", "old too")
    store.set("acknowledged/old/1", "")
    assert len(set(join(store, [0, 2, 1], 3))) == 1
    assert store.check(["answer/old"])


@pytest.mark.slow
def test_fewer_processes_than_before(store: dist.Store) -> None:
    join(store, [0, 1, 2, 3], 4)
    assert len(set(join(store, [1, 0], 2))) == 1


def test_process_that_does_not_join(store: dist.Store) -> None:
    store.set("request/1", "old")
    with pytest.raises(dist.DistError, match=r"processes \[1, 2\] did not join in 0:00:01"):
        agree_on_attempt(store, 0, 3, timedelta(seconds=1))
    with pytest.raises(dist.DistError, match=r"process 0 did not answer in 0:00:01 \("):
        agree_on_attempt(store, 1, 2, timedelta(seconds=1))
