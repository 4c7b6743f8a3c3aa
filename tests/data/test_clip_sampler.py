"""The order and sharing of samples over epochs and ranks, and draws of numbers of frames."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from ffn.data import ClipSampler, FrameCounts

RANGES = {4: dict.fromkeys(range(2, 6), 1 / 4), 16: dict.fromkeys(range(12, 21), 1 / 9)}


def sampler(size=23, **options):
    return ClipSampler(size, **{"shuffle": True, "seed": 1, "batch_size": 3, **options})


def keys(one, epoch=0, skip=0):
    one.set_epoch(epoch, skip)
    return list(one)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_training_ranks_share_the_epoch_equally(world_size):
    ranks = [keys(sampler(rank=r, world_size=world_size), epoch=4) for r in range(world_size)]
    assert len({len(rank) for rank in ranks}) == 1
    seen = [index for rank in ranks for _, index, _ in rank]
    assert all(epoch == 4 for rank in ranks for epoch, *_ in rank)
    assert len(seen) == len(set(seen)) == 23 // (3 * world_size) * 3 * world_size


def test_batches_of_all_ranks_are_those_of_one_process():
    one = keys(sampler(batch_size=6))
    two = [keys(sampler(rank=r, world_size=2)) for r in range(2)]
    for b in range(len(one) // 6):
        together = [key for rank in two for key in rank[3 * b : 3 * b + 3]]
        assert sorted(together) == sorted(one[6 * b : 6 * b + 6])


def test_order_depends_on_epoch_and_seed_only():
    assert keys(sampler(), 2) == keys(sampler(), 2)
    orders = [
        [index for _, index, _ in keys(sampler(seed=seed), epoch)]
        for seed, epoch in ((1, 0), (1, 1), (2, 0))
    ]
    assert len({tuple(order) for order in orders}) == 3
    assert all(len(set(order)) == 21 for order in orders)


@pytest.mark.parametrize("world_size", [1, 3, 30])
def test_evaluation_takes_each_sample_once(world_size):
    ranks = [
        [i for _, i, _ in sampler(shuffle=False, rank=r, world_size=world_size)]
        for r in range(world_size)
    ]
    assert sorted(i for rank in ranks for i in rank) == list(range(23))
    assert ranks[world_size - 1] == list(range(world_size - 1, 23, world_size))


def test_skipped_batches_resume_an_epoch():
    whole = keys(sampler(rank=1, world_size=2), epoch=3)
    assert keys(sampler(rank=1, world_size=2), epoch=3, skip=2) == whole[6:]
    resumed = sampler()
    resumed.set_epoch(3, 2)
    assert len(resumed) == 21 - 6
    resumed.set_epoch(4)
    assert len(resumed) == 21


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("repeats", [2, 3])
def test_copies_of_a_video_are_in_one_batch(repeats, world_size):
    options = {"batch_size": 6, "repeats": repeats, "world_size": world_size}
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


@pytest.mark.parametrize("world_size", [1, 2])
def test_parts_of_a_file_are_in_one_batch(world_size):
    groups, options = [f"{i % 8}.mp4" for i in range(24)], {"batch_size": 6 // world_size}
    ranks = [
        sampler(24, groups=groups, rank=r, world_size=world_size, **options)
        for r in range(world_size)
    ]
    orders = []
    for epoch in range(2):
        parts = [[index for _, index, _ in keys(one, epoch)] for one in ranks]
        order = [index for together in zip(*parts, strict=True) for index in together]
        assert sorted(order) == [*range(24)]
        for b in range(0, 24, 6):
            assert sorted(Counter(groups[i] for i in order[b : b + 6]).values()) == [3, 3]
        orders.append(order)
    assert orders[0] != orders[1]


def test_sampler_refuses():
    for options, message in (
        ({"repeats": 2}, "batch_size 3, repeats 2"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"world_size": 10}, "do not fill one batch of 3 on each of 10"),
        ({"shuffle": False, "frame_counts": FrameCounts(RANGES)}, "set shuffle=True"),
    ):
        with pytest.raises(ValueError, match=message):
            sampler(**options)


def test_draws_have_their_probabilities() -> None:
    draw = FrameCounts({4: {2: 0.1, 4: 0.6, 5: 0.3}, 16: RANGES[16]})
    steps = [draw(epoch, batch) for epoch in range(20) for batch in range(200)]

    small, large = (Counter(step[view] for step in steps) for view in (4, 16))
    for frames, probability in {2: 0.1, 4: 0.6, 5: 0.3}.items():  # 5 standard deviations
        assert small[frames] / 4000 == pytest.approx(probability, abs=0.04), frames
    assert small.keys() == {2, 4, 5}
    assert large.keys() == set(range(12, 21))
    assert max(abs(n / 4000 - 1 / 9) for n in large.values()) < 0.025
    # Views are independent of each other: 0.3 * 1 / 9 of the steps have (5, 20).
    both = sum(step == {4: 5, 16: 20} for step in steps) / 4000
    assert both == pytest.approx(0.3 / 9, abs=0.015)


def test_draws_depend_on_seed_epoch_and_step_only() -> None:
    def draws(seed: int, epoch: int) -> list[dict[int, int]]:
        draw = FrameCounts(RANGES, seed=seed)
        return [draw(epoch, batch) for batch in range(50)]

    assert draws(0, 3) == draws(0, 3)
    assert draws(0, 3) != draws(0, 4)
    assert draws(0, 3) != draws(1, 3)
    in_steps = FrameCounts(RANGES, seed=0, batches_per_step=3)
    assert [in_steps(3, batch) for batch in range(150)][::3] == draws(0, 3)
    assert in_steps(3, 3) == in_steps(3, 4) == in_steps(3, 5)


def test_probabilities_are_checked() -> None:
    for numbers in ({}, {0: 1.0}, {4: 0.5}, {4: 1.5, 5: -0.5}):
        with pytest.raises(ValueError, match=r"expected at least 1|sum"):
            FrameCounts({4: numbers})
