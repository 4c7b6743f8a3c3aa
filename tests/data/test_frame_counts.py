"""Draws of the numbers of frames of a step."""

from __future__ import annotations

from collections import Counter

import pytest

from ffn.data import ClipSampler, FrameCounts

RANGES = {4: dict.fromkeys(range(2, 6), 1 / 4), 16: dict.fromkeys(range(12, 21), 1 / 9)}


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


@pytest.mark.parametrize("repeats", [1, 2])
def test_batches_of_all_ranks_have_the_same_numbers(repeats: int) -> None:
    draw = FrameCounts(RANGES, seed=7)

    def batches(rank: int, skip: int = 0) -> list[list[tuple]]:
        sampler = ClipSampler(
            21, shuffle=True, seed=7, rank=rank, world_size=2, batch_size=4, repeats=repeats,
            drop_last=True, frame_counts=draw,
        )  # fmt: skip
        sampler.set_epoch(5, skip)
        keys = list(sampler)
        return [keys[i : i + 4] for i in range(0, len(keys), 4)]

    ranks = [batches(0), batches(1)]
    assert len(ranks[0]) == len(ranks[1]) == 21 * repeats // 8
    for number, together in enumerate(zip(*ranks, strict=True)):
        keys = [key for batch in together for key in batch]
        assert [key[3] for key in keys] == [draw(5, number)] * 8
        assert sorted({key[2] for key in keys}) == list(range(repeats))
    assert batches(1, skip=1) == ranks[1][1:]  # a resumed epoch


def test_refused() -> None:
    with pytest.raises(ValueError, match="frame_counts is only used in training"):
        ClipSampler(9, shuffle=False, frame_counts=FrameCounts(RANGES))
    for numbers in ({}, {0: 1.0}, {4: 0.5}, {4: 1.5, 5: -0.5}):
        with pytest.raises(ValueError, match=r"expected at least 1|sum"):
            FrameCounts({4: numbers})
