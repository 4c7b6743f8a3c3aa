"""Batches of the loader, with and without workers."""

from __future__ import annotations

import sys
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler

import pytest
import torch

from ffn.data import (
    Preprocessing,
    Record,
    TrainTransform,
    VideoDataset,
    VideoError,
    collate_eval,
    collate_train,
    make_loader,
)
from ffn.data.loader import worker_start_method

SMALL = Preprocessing(crop=16, resize=16)


@pytest.fixture(scope="module")
def records(write_video, tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    paths = [write_video(folder / f"{i}.mp4", 12, width=32, height=32) for i in range(3)]
    return [Record(paths[i % 3], i) for i in range(13)]  # labels distinguish the samples


def dataset(records, train=True, **options):
    return VideoDataset(records, views=(2, 4), preprocessing=SMALL, train=train, seed=5, **options)


def same(one, other):
    return (
        torch.equal(one["label"], other["label"])
        and torch.equal(one["index"], other["index"])
        and all(torch.equal(one["clips"][v], other["clips"][v]) for v in one["clips"])
    )


def test_copies_have_different_draws_of_the_same_video(records):
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


@pytest.mark.parametrize("train", [True, False])
def test_workers_do_not_change_batches(train, records):
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
            position = batch["index"].tolist().index(index)
            assert torch.equal(shard["clips"][4][i], batch["clips"][4][position])


def test_batch_has_the_documented_shapes(records):
    batch = next(iter(make_loader(dataset(records), batch_size=3, train=True)))
    assert {view: clip.shape for view, clip in batch["clips"].items()} == {
        2: (3, 3, 2, 16, 16),
        4: (3, 3, 4, 16, 16),
    }
    assert batch["clips"][4].dtype == torch.uint8
    assert batch["label"].dtype == batch["index"].dtype == torch.int64
    assert batch["ok"].dtype == torch.bool
    assert batch["skipped"] == []


def test_global_random_state_is_unchanged(records):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(make_loader(dataset(records), batch_size=4, train=True))
    list(make_loader(dataset(records), batch_size=4, train=True, workers=1))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture
def with_broken(records, tmp_path):
    (tmp_path / "broken.mp4").touch()
    return [*records[:3], Record(str(tmp_path / "broken.mp4"), 3)]


def test_training_skips_and_reports_unreadable_videos(with_broken):
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


def test_batch_without_any_readable_video_is_empty(with_broken):
    item = dataset(with_broken, on_error="skip")[3]
    batch = collate_train([item, item])
    assert batch["clips"] == {}
    assert batch["label"].tolist() == batch["index"].tolist() == batch["ok"].tolist() == []
    assert batch["label"].dtype == batch["index"].dtype == torch.int64
    assert [("broken.mp4" in reason) for reason in batch["skipped"]] == [True, True]
    assert collate_eval([item, item])["ok"].tolist() == [False, False]


@pytest.mark.parametrize("workers", [0, 1])
def test_failure_names_the_file_from_any_process(workers, with_broken):
    data = dataset(with_broken, train=False)
    with pytest.raises(VideoError, match=r"broken\.mp4: the file is empty"):
        list(make_loader(data, batch_size=2, workers=workers))


@pytest.mark.parametrize(
    ("platform", "cuda", "expected"),
    [
        ("linux", False, "fork"),
        ("linux", True, "forkserver"),
        ("darwin", False, "spawn"),
        ("darwin", True, "spawn"),
    ],
)
def test_start_method(platform, cuda, expected, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: cuda)
    assert worker_start_method() == expected


class CountingDataset(VideoDataset):
    """A dataset whose items contain the number of videos that this process has opened."""

    opened = 0

    def _open_file(self, record):
        self.opened += 1
        return super()._open_file(record)

    def __getitem__(self, key):
        item = super().__getitem__(key)
        return {**item, "index": self.opened}


def test_workers_of_every_start_method_give_the_same_samples(records, start_method):
    """With every option of a training transform, and with cached videos in the second epoch."""
    transform = TrainTransform(
        SMALL,
        crop_mode="resized",
        flip="random",
        color_jitter=(0.4, 0.4, 0.4, 0.1),
        randaugment="rand-m7-n4-mstd0.5-inc1",
        random_erasing=0.5,
    )
    options = {"views": (2, 4), "preprocessing": SMALL, "train": True, "seed": 5}
    data = CountingDataset(records, transform=transform, cache_bytes=2**24, **options)
    helped = make_loader(data, batch_size=4, train=True, workers=1, drop_last=False)
    plain = VideoDataset(records, transform=transform, **options)
    alone = make_loader(plain, batch_size=4, train=True, drop_last=False)
    for epoch in (0, 1):
        for loader in (alone, helped):
            loader.sampler.set_epoch(epoch)
        for expected, batch in zip(alone, helped, strict=True):
            assert torch.equal(batch["label"], expected["label"])
            assert all(torch.equal(batch["clips"][v], expected["clips"][v]) for v in (2, 4))
        assert batch["index"].max() == len(records)  # no video is opened again in epoch 1


def test_workers_of_every_start_method_share_the_records(records, start_method):
    """A write of the main process is visible in a running worker."""
    data = dataset(records[:4], train=False)
    loader = make_loader(data, batch_size=4, workers=1)
    assert [batch["label"].tolist() for batch in loader] == [[0, 1, 2, 3]]
    text = bytes(data.records._text.tolist())  # JSON: [path, label, …]
    data.records._text[text.index(b", 2, null") + 2] = ord("7")
    assert [batch["label"].tolist() for batch in loader] == [[0, 1, 7, 3]]


def test_pickled_dataset_does_not_contain_the_records():
    """A worker started by forkserver or spawn receives the dataset as such a pickle."""

    def size(count):
        records = [Record(f"/videos/{i:020d}.mp4", i, 12, 0.5, 1.5) for i in range(count)]
        return len(ForkingPickler.dumps(dataset(records)))

    try:
        assert abs(size(20_000) - size(2)) < 100
    finally:
        resource_sharer.stop()  # closes the file descriptors that the pickles refer to
