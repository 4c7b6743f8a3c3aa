"""Processes that start again find each other, whatever the dead ones left behind."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from ffn.engine.rendezvous import agree_on_name

SOON = timedelta(seconds=20)


@pytest.fixture
def store() -> dist.Store:
    return dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)


def meet(store: dist.Store, ranks: list[int], size: int, timeout: timedelta = SOON) -> list[str]:
    """What each of the ranks learns, started in this order."""
    found: dict[int, str] = {}

    def come(rank: int) -> None:
        own = store if rank == ranks[0] else dist.TCPStore("127.0.0.1", store.port, None, False)
        found[rank] = agree_on_name(own, rank, size, timeout)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return [found[rank] for rank in sorted(found)]


@pytest.mark.parametrize("ranks", [[0], [0, 1], [2, 0, 1], [3, 2, 1, 0]])
def test_all_know_one_name_and_every_start_has_another(store: dist.Store, ranks: list[int]) -> None:
    names = [meet(store, ranks, len(ranks)) for _ in range(5)]

    assert all(len(set(known)) == 1 and len(known) == len(ranks) for known in names)
    assert len({known[0] for known in names}) == 5


def test_words_of_the_dead_are_answered_and_waited_past(store: dist.Store) -> None:
    """They greeted and died; rank 1 of the living comes late."""
    store.set("greeting/1", "dead")
    store.set("greeting/2", "dead too")
    store.set("thanks/dead/1", "")
    assert len(set(meet(store, [0, 2, 1], 3))) == 1
    assert store.check(["answer/dead"])


def test_fewer_processes_than_before(store: dist.Store) -> None:
    meet(store, [0, 1, 2, 3], 4)
    assert len(set(meet(store, [1, 0], 2))) == 1


def test_process_that_does_not_come(store: dist.Store) -> None:
    store.set("greeting/1", "dead")
    with pytest.raises(dist.DistError, match=r"processes \[1, 2\] did not come in 0:00:01"):
        agree_on_name(store, 0, 3, timedelta(seconds=1))
    with pytest.raises(dist.DistError):
        agree_on_name(store, 1, 2, timedelta(seconds=1))
