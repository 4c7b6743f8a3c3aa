from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from ffn.data import (
    ClipSampler,
    Preprocessing,
    Record,
    VideoDataset,
    VideoError,
    collate_eval,
    collate_train,
    make_loader,
)
from ffn.data import loader as loader_module

SMALL = Preprocessing(crop=16, resize=16)


@pytest.fixture(scope="module")
def records(write_video, tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    paths = [write_video(folder / f"{i}.mp4", 12, width=32, height=32) for i in range(3)]
    return [Record(paths[i % 3], i) for i in range(13)]  # labels tell the samples apart


def dataset(records, train=True, **options):
    return VideoDataset(records, views=(2, 4), preprocessing=SMALL, train=train, seed=5, **options)


def same(one, other):
    return (
        torch.equal(one["label"], other["label"])
        and torch.equal(one["index"], other["index"])
        and all(torch.equal(one["clips"][v], other["clips"][v]) for v in one["clips"])
    )


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


def test_order_changes_with_epoch_and_seed_alone():
    assert keys(sampler(), 2) == keys(sampler(), 2)
    orders = [
        [index for _, index in keys(sampler(seed=seed), epoch)]
        for seed, epoch in ((1, 0), (1, 1), (2, 0))
    ]
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(23)) for order in orders)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 30])
def test_evaluation_sees_each_sample_once(world_size):
    ranks = [
        [i for _, i in sampler(shuffle=False, rank=r, world_size=world_size)]
        for r in range(world_size)
    ]
    assert sorted(i for rank in ranks for i in rank) == list(range(23))
    assert ranks[world_size - 1] == list(range(world_size - 1, 23, world_size))


def test_skipping_continues_an_epoch():
    whole = keys(sampler(rank=1, world_size=2), epoch=3)
    assert keys(sampler(rank=1, world_size=2), epoch=3, skip=2) == whole[6:]
    resumed = sampler()
    resumed.set_epoch(3, 2)
    assert len(resumed) == 23 - 6
    resumed.set_epoch(4)
    assert len(resumed) == 23


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("repeats", [2, 3])
def test_repeats_put_every_video_several_times_into_one_batch(repeats, world_size):
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


def test_repeats_see_the_videos_in_the_order_of_a_smaller_batch():
    repeated = keys(sampler(batch_size=6, repeats=2, drop_last=True))
    once = keys(sampler(batch_size=3, drop_last=True))
    assert [key[:2] for key in repeated if key[2] == 1] == once


def test_copies_are_other_draws_of_the_same_video(records):
    data = dataset(records)
    loader = make_loader(data, batch_size=4, train=True, repeats=2)
    batch = next(iter(loader))
    assert batch["index"].tolist() == batch["index"].tolist()[:2] * 2
    assert batch["label"].tolist() == batch["label"].tolist()[:2] * 2
    for i, index in enumerate(batch["index"].tolist()):
        expected = data[0, index, i // 2]["clips"]
        assert all(torch.equal(batch["clips"][v][i], expected[v]) for v in (2, 4))
    assert not torch.equal(batch["clips"][4][:2], batch["clips"][4][2:])
    assert all(torch.equal(data[3, 1]["clips"][v], data[3, 1, 0]["clips"][v]) for v in (2, 4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size 0"),
        ({"repeats": 2, "drop_last": True}, "repeats is 2 with batch_size 3"),
        ({"repeats": 3}, "and drop_last in training"),
        ({"repeats": 0}, "repeats is 0"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"drop_last": True, "world_size": 10}, "do not fill one batch of 3 on each of 10"),
        ({"drop_last": True, "shuffle": False}, "leave samples out of an evaluation"),
    ],
)
def test_sampler_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        sampler(**options)


@pytest.mark.parametrize("train", [True, False])
def test_workers_change_nothing(train, records):
    options = {"batch_size": 4, "train": train, "seed": 3}
    alone = make_loader(dataset(records, train), **options)
    helped = make_loader(dataset(records, train), **options, workers=2)
    for epoch in (0, 1):  # the same two workers for both
        for one in (alone, helped):
            one.sampler.set_epoch(epoch)
        expected, batches = list(alone), list(helped)
        assert len(expected) == len(batches) == len(alone) == (3 if train else 4)
        assert all(same(a, b) for a, b in zip(expected, batches, strict=True))
    if train:
        alone.sampler.set_epoch(0)
        assert not same(next(iter(alone)), expected[0])


def test_resumed_epoch_gives_the_same_batches(records):
    options = {"batch_size": 2, "train": True}
    whole = make_loader(dataset(records), **options)
    whole.sampler.set_epoch(6)
    resumed = make_loader(dataset(records), **options)
    resumed.sampler.set_epoch(6, skip_batches=2)
    expected, batches = list(whole)[2:], list(resumed)
    assert len(batches) == len(expected) == len(resumed) == 4
    assert all(same(a, b) for a, b in zip(expected, batches, strict=True))


def test_samples_do_not_depend_on_ranks(records):
    one = make_loader(dataset(records), batch_size=4, train=True)
    batch = next(iter(one))
    for rank in range(2):
        part = make_loader(dataset(records), batch_size=2, train=True, rank=rank, world_size=2)
        shard = next(iter(part))
        for i, index in enumerate(shard["index"]):
            place = batch["index"].tolist().index(index)
            assert torch.equal(shard["clips"][4][i], batch["clips"][4][place])


def test_batch_has_the_promised_form(records):
    batch = next(iter(make_loader(dataset(records), batch_size=3, train=True)))
    assert {view: clip.shape for view, clip in batch["clips"].items()} == {
        2: (3, 3, 2, 16, 16),
        4: (3, 3, 4, 16, 16),
    }
    assert batch["clips"][4].dtype == torch.uint8
    assert batch["label"].dtype == batch["index"].dtype == torch.int64
    assert batch["ok"].dtype == torch.bool
    assert batch["skipped"] == []


def test_global_random_state_is_left_alone(records):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(make_loader(dataset(records), batch_size=4, train=True))
    list(make_loader(dataset(records), batch_size=4, train=True, workers=1))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture
def with_broken(records, tmp_path):
    (tmp_path / "broken.mp4").touch()
    return [*records[:3], Record(str(tmp_path / "broken.mp4"), 3)]


def test_training_leaves_out_unreadable_videos_by_name(with_broken):
    data = dataset(with_broken, on_error="skip")
    batch = next(iter(make_loader(data, batch_size=4, train=True)))
    assert sorted(batch["label"].tolist()) == [0, 1, 2]
    assert batch["ok"].all()
    assert all(clip.shape[0] == 3 for clip in batch["clips"].values())
    assert len(batch["skipped"]) == 1
    assert "broken.mp4: the file is empty" in batch["skipped"][0]


def test_evaluation_keeps_unreadable_videos(with_broken):
    data = dataset(with_broken, train=False, on_error="skip")
    batch = next(iter(make_loader(data, batch_size=4)))
    assert batch["index"].tolist() == batch["label"].tolist() == [0, 1, 2, 3]
    assert batch["ok"].tolist() == [True, True, True, False]
    assert "broken.mp4" in batch["skipped"][0]


def test_batch_without_any_readable_video_fails(with_broken):
    item = dataset(with_broken, on_error="skip")[3]
    with pytest.raises(VideoError, match=r"broken\.mp4.*nor could any other of the 2"):
        collate_train([item, item])
    assert collate_eval([item, item])["ok"].tolist() == [False, False]


@pytest.mark.parametrize("workers", [0, 1])
def test_failure_names_the_file_from_any_process(workers, with_broken):
    data = dataset(with_broken, train=False)
    with pytest.raises(VideoError, match=r"broken\.mp4: the file is empty"):
        list(make_loader(data, batch_size=2, workers=workers))


def test_workers_do_not_fork_a_process_that_uses_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert loader_module._start_method() in ("forkserver", None)
