"""Orders by pages: each sample once, few pages in use, the same for any ranks and restarts."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from store_clips import packed, write_set

from ffn.data import ClipSampler, ClipStore, Record, page_order

PAGES = np.random.default_rng(0).permutation(np.repeat(np.arange(40), 25))  # 1000 samples


def pages_in_use(order, pages):
    """Largest number of pages that are begun and not yet ended, counted by walking along."""
    left = {page: int((pages == page).sum()) for page in set(pages.tolist())}
    begun, most = set(), 0
    for sample in order:
        page = int(pages[sample])
        begun.add(page)
        most = max(most, len(begun))
        left[page] -= 1
        if not left[page]:
            begun.remove(page)
    return most


@pytest.mark.parametrize("window", [1, 2, 7, 39, 40, 1000, None])
def test_each_sample_once_and_few_pages_in_use(window):
    order = page_order(PAGES, 3, 5, window=window)
    assert sorted(order.tolist()) == list(range(1000))
    most = pages_in_use(order, PAGES)
    assert most <= (window or 40)
    if window in (2, 7):
        assert most == window  # and the samples of so many are mixed


def test_pages_of_unequal_numbers_of_samples():
    pages = np.array([5] * 300 + [2] * 3 + [9] + [700] * 50)
    order = page_order(pages, 0, 0, window=2)
    assert sorted(order.tolist()) == list(range(354))
    assert pages_in_use(order, pages) <= 2


def test_order_depends_on_seed_and_epoch_alone():
    orders = [page_order(PAGES, *given, window=4) for given in ((1, 0), (1, 1), (2, 0))]
    assert np.array_equal(orders[0], page_order(PAGES, 1, 0, window=4))
    assert len({tuple(order) for order in orders}) == 3


def test_window_over_all_pages_is_a_uniform_shuffle():
    """Each sample comes first equally often: chi-square over 3000 epochs, 9 degrees of freedom."""
    pages = np.arange(10)
    first = [page_order(pages, 0, epoch, window=10)[0] for epoch in range(3000)]
    counts = np.bincount(first, minlength=10)
    assert ((counts - 300) ** 2 / 300).sum() < 27.9  # exceeded once in a thousand


def test_every_pair_of_pages_can_meet():
    """Each epoch has a new order of pages: any two may be neighbours."""
    meetings = np.zeros((40, 40), dtype=bool)
    for epoch in range(60):
        page = PAGES[page_order(PAGES, 0, epoch, window=8)]
        meetings[page[:-1], page[1:]] = True
    assert (meetings | meetings.T).all()


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_batches_of_all_ranks_are_those_of_one_process(world_size, drop_last):
    order = partial(page_order, PAGES, window=4)

    def sampler(rank, ranks, skip=0):
        options = {"shuffle": True, "seed": 7, "drop_last": drop_last, "order": order}
        one = ClipSampler(1000, rank=rank, world_size=ranks, batch_size=24 // ranks, **options)
        one.set_epoch(3, skip)
        return list(one)

    alone = sampler(0, 1)
    ranks = [sampler(r, world_size) for r in range(world_size)]
    share = 24 // world_size
    for b in range(1000 // 24):
        together = [key for rank in ranks for key in rank[share * b : share * (b + 1)]]
        assert sorted(together) == sorted(alone[24 * b : 24 * (b + 1)])
    seen = [index for rank in ranks for _, index in rank]
    assert len(set(seen)) == len(seen) == (984 if drop_last else 1000)
    assert seen[: len(ranks[0])] != sorted(seen[: len(ranks[0])])
    for rank in range(world_size):
        assert sampler(rank, world_size, skip=5) == ranks[rank][5 * share :]


def test_sampler_refuses_orders_that_lose_samples():
    options = {"shuffle": True, "batch_size": 2}
    with pytest.raises(ValueError, match="gives 1000 indices for 999 samples"):
        len(ClipSampler(999, order=partial(page_order, PAGES), **options))
    with pytest.raises(ValueError, match="each of 0 … 3 once"):
        len(ClipSampler(4, order=lambda seed, epoch: np.array([0, 1, 1, 2]), **options))
    with pytest.raises(ValueError, match="only used in training"):
        ClipSampler(4, shuffle=False, order=lambda seed, epoch: np.arange(4))


def test_window_is_checked():
    with pytest.raises(ValueError, match="window is 0 pages"):
        page_order(PAGES, 0, 0, window=0)


def test_pages_of_a_store(tmp_path):
    pytest.importorskip("av")
    records = write_set(tmp_path, frames=60)  # 60 * 64 * 48 * 3 = 0.53 MiB raw, one to a shard
    store = ClipStore(packed(tmp_path, records, tmp_path / "s", shard_mib=2), root=tmp_path)
    shards = [int(store.open_record(record).row["shard"]) for record in records]
    assert shards == [0, 0, 0, 1, 1, 1, 2, 2]
    assert store.pages(records).tolist() == shards
    other = Record(str(tmp_path / "other.mkv"), 0)
    assert store.pages([records[4], other, other]).tolist() == [1, 3, 3]
    small = store.pages(records, page_bytes=600_000)
    offsets = [int(store.open_record(record).row["offset"]) // 600_000 for record in records]
    expected = [(s, o) for s, o in zip(shards, offsets, strict=True)]
    assert len(set(small.tolist())) == len(set(expected)) == 5
    assert [small.tolist().index(page) for page in small] == [expected.index(e) for e in expected]
    with pytest.raises(ValueError, match="page_bytes is 0"):
        store.pages(records, 0)
