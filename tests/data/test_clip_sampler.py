"""The order and sharing of samples over epochs and ranks."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ffn.data import ClipSampler


def sampler(size=23, **options):
    return ClipSampler(size, **{"shuffle": True, "seed": 1, "batch_size": 3, **options})


def keys(one, epoch=0, skip=0):
    one.set_epoch(epoch, skip)
    return list(one)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_training_ranks_share_the_epoch_equally(world_size, drop_last):
    ranks = [
        keys(sampler(rank=r, world_size=world_size, drop_last=drop_last), epoch=4)
        for r in range(world_size)
    ]
    assert len({len(rank) for rank in ranks}) == 1
    seen = [index for rank in ranks for epoch, index in rank]
    assert all(epoch == 4 for rank in ranks for epoch, _ in rank)
    if drop_last:
        assert len(seen) == len(set(seen)) == 23 // (3 * world_size) * 3 * world_size
    else:
        assert set(seen) == set(range(23))
        assert len(seen) - 23 < world_size


def test_batches_of_all_ranks_are_those_of_one_process():
    one = keys(sampler(batch_size=6, drop_last=True))
    two = [keys(sampler(rank=r, world_size=2, drop_last=True)) for r in range(2)]
    for b in range(len(one) // 6):
        together = [key for rank in two for key in rank[3 * b : 3 * b + 3]]
        assert sorted(together) == sorted(one[6 * b : 6 * b + 6])


def test_order_depends_on_epoch_and_seed_only():
    assert keys(sampler(), 2) == keys(sampler(), 2)
    orders = [
        [index for _, index in keys(sampler(seed=seed), epoch)]
        for seed, epoch in ((1, 0), (1, 1), (2, 0))
    ]
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(23)) for order in orders)


@pytest.mark.parametrize("world_size", [1, 3, 30])
def test_evaluation_takes_each_sample_once(world_size):
    ranks = [
        [i for _, i in sampler(shuffle=False, rank=r, world_size=world_size)]
        for r in range(world_size)
    ]
    assert sorted(i for rank in ranks for i in rank) == list(range(23))
    assert ranks[world_size - 1] == list(range(world_size - 1, 23, world_size))


def test_skipped_batches_resume_an_epoch():
    whole = keys(sampler(rank=1, world_size=2), epoch=3)
    assert keys(sampler(rank=1, world_size=2), epoch=3, skip=2) == whole[6:]
    resumed = sampler()
    resumed.set_epoch(3, 2)
    assert len(resumed) == 23 - 6
    resumed.set_epoch(4)
    assert len(resumed) == 23


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("repeats", [2, 3])
def test_copies_of_a_video_are_in_one_batch(repeats, world_size):
    options = {"batch_size": 6, "repeats": repeats, "drop_last": True, "world_size": world_size}
    videos, seen = 6 // repeats, []
    for rank in range(world_size):
        one = sampler(rank=rank, **options)
        found = keys(one, epoch=4)
        assert len(found) == len(one) == 23 // (videos * world_size) * 6
        for b in range(len(found) // 6):
            part = found[6 * b : 6 * b + 6]
            copies = [[key[1] for key in part if key[2] == copy] for copy in range(repeats)]
            assert copies == [copies[0]] * repeats
            assert len(set(copies[0])) == videos
            assert all(epoch == 4 for epoch, *_ in part)
            assert all(a[1] != b[1] for a, b in pairwise(part))
            seen += copies[0]
        assert keys(sampler(rank=rank, **options), epoch=4, skip=1) == found[6:]
    assert len(seen) == len(set(seen))  # an epoch is one pass over the videos
    assert len(seen) == 23 // (videos * world_size) * videos * world_size


def test_sampler_refuses():
    for options, message in (
        ({"size": 0}, "size 0"),
        ({"repeats": 2, "drop_last": True}, "repeats is 2 with batch_size 3"),
        ({"repeats": 3}, "and drop_last in training"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"drop_last": True, "world_size": 10}, "do not fill one batch of 3 on each of 10"),
        ({"drop_last": True, "shuffle": False}, "drop samples of an evaluation"),
    ):
        with pytest.raises(ValueError, match=message):
            sampler(**options)
