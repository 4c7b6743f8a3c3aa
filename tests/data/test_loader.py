"""Batches of the loader, in one process."""

from __future__ import annotations

import pytest
import torch

from ffn.data import (
    LoaderError,
    Preprocessing,
    Record,
    VideoDataset,
    VideoError,
    collate_eval,
    collate_train,
    make_loader,
    watching,
)

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
    batch = next(iter(make_loader(data, batch_size=4, train=True, repeats=2)))
    assert batch["index"].tolist() == batch["index"].tolist()[:2] * 2
    assert batch["label"].tolist() == batch["label"].tolist()[:2] * 2
    for i, index in enumerate(batch["index"].tolist()):
        expected = data[0, index, i // 2]["clips"]
        assert all(torch.equal(batch["clips"][v][i], expected[v]) for v in (2, 4))
    assert not torch.equal(batch["clips"][4][:2], batch["clips"][4][2:])


def test_batches_depend_on_the_epoch_and_leave_the_random_state_alone(records):
    before = torch.get_rng_state()
    loader = make_loader(dataset(records), batch_size=2, train=True)
    epochs = []
    for epoch in (6, 7):
        loader.sampler.set_epoch(epoch)
        epochs.append([*loader])
    assert not same(epochs[0][0], epochs[1][0])
    assert torch.equal(torch.get_rng_state(), before)
    loader.sampler.set_epoch(6, skip_batches=2)
    assert len(loader) == 4
    assert all(same(a, b) for a, b in zip(epochs[0][2:], loader, strict=True))
    batch = epochs[0][0]
    assert {v: clip.shape for v, clip in batch["clips"].items()} == {
        2: (2, 3, 2, 16, 16),
        4: (2, 3, 4, 16, 16),
    }
    types = [batch[name].dtype for name in ("label", "index", "ok")]
    assert types == [torch.int64, torch.int64, torch.bool]
    assert batch["clips"][4].dtype == torch.uint8


@pytest.fixture
def with_broken(records, tmp_path):
    (tmp_path / "broken.mp4").touch()
    return [*records[:3], Record(str(tmp_path / "broken.mp4"), 3)]


def test_training_skips_and_tests_mark_unreadable_videos(with_broken):
    batch = next(iter(make_loader(dataset(with_broken, on_error="skip"), batch_size=4, train=True)))
    assert sorted(batch["label"].tolist()) == [0, 1, 2]
    assert batch["ok"].all()
    assert all(clip.shape[0] == 3 for clip in batch["clips"].values())
    tests = dataset(with_broken, train=False, on_error="skip")
    tested = next(iter(make_loader(tests, batch_size=4)))
    assert tested["index"].tolist() == tested["label"].tolist() == [0, 1, 2, 3]
    assert tested["ok"].tolist() == [True, True, True, False]
    assert not any(clip[3].any() for clip in tested["clips"].values())
    for skipped in (batch["skipped"], tested["skipped"]):
        assert len(skipped) == 1
        assert "broken.mp4: the file is empty" in skipped[0]
    with pytest.raises(VideoError, match=r"broken\.mp4: the file is empty"):
        list(make_loader(dataset(with_broken, train=False), batch_size=2))


def test_batch_without_any_readable_video_is_empty(with_broken):
    item = dataset(with_broken, on_error="skip")[3]
    batch = collate_train([item, item])
    assert batch["clips"] == {}
    assert batch["label"].tolist() == batch["index"].tolist() == batch["ok"].tolist() == []
    assert batch["label"].dtype == batch["index"].dtype == torch.int64
    assert len(batch["skipped"]) == 2
    assert collate_eval([item, item])["ok"].tolist() == [False, False]


def test_an_error_of_a_save_while_a_worker_exits():
    """torch.save then reports a file of the wrong length."""

    class File:
        def __init__(self, error):
            self.error = error

        def write(self, data):
            raise self.error

    def save(error):
        with watching():
            torch.save({"weight": torch.zeros(1000)}, File(error))

    with pytest.raises(LoaderError, match=r"\(worker \(pid 1\) is killed by signal: Killed\)"):
        save(RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed."))
    for error in (OSError("no space"), EOFError("ran out of input")):
        with pytest.raises((RuntimeError, OSError, EOFError)) as caught:
            save(error)
        assert not isinstance(caught.value, LoaderError)
