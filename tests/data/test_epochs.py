"""Whole epochs: each sample is loaded as often as documented, and memory does not grow."""

from __future__ import annotations

import os
from collections import Counter
from itertools import chain
from pathlib import Path
from statistics import median

import pytest

from ffn.data import Preprocessing, Record, VideoDataset, make_loader

PLAIN = Preprocessing(crop=16, resize=16)
BROKEN = {7, 20, 41, 42, 99}  # 5 % of 100


@pytest.fixture(scope="module")
def records(write_folder, write_video, tmp_path_factory):
    """100 videos, folders and files; those in `BROKEN` are damaged in different ways."""
    root = tmp_path_factory.mktemp("videos")
    records = []
    for i in range(100):
        path = root / f"{i:03d}"
        if i % 10 == 0:
            path = path.with_suffix(".mp4")
            write_video(path, 5, width=32, height=32)
        else:
            write_folder(path, 5, size=(24, 24))
        records.append(Record(str(path), i % 7))
    (root / "007/00003.jpg").write_bytes(b"no image")
    os.truncate(records[20].path, 500)
    for image in (root / "041").iterdir():
        image.unlink()
    (root / "042/00001.jpg").unlink()
    records[99] = Record(str(root / "absent"), 1)
    return records


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("ranks", [1, 2])
def test_training_loads_each_video_once_and_reports_broken_ones(workers, ranks, records):
    seen, skipped = Counter(), Counter()
    for rank in range(ranks):
        dataset = VideoDataset(
            records, views=(5,), preprocessing=PLAIN, train=True, on_error="skip"
        )
        loader = make_loader(
            dataset,
            batch_size=10,
            workers=workers,
            train=True,
            rank=rank,
            world_size=ranks,
            timeout=60 if workers else 0,
        )
        loader.sampler.set_epoch(3)
        for batch in loader:
            seen.update(batch["index"].tolist())
            skipped.update(text.split(":")[0].split(",")[0] for text in batch["skipped"])
    assert seen == Counter(set(range(100)) - BROKEN)
    assert skipped == Counter(records[i].path for i in BROKEN)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ranks", [1, 2])
def test_testing_keeps_each_video_once_and_marks_broken_ones(workers, ranks, records):
    seen, marked = Counter(), set()
    for rank in range(ranks):
        dataset = VideoDataset(records, views=(2,), preprocessing=PLAIN, on_error="skip")
        loader = make_loader(dataset, batch_size=8, workers=workers, rank=rank, world_size=ranks)
        for batch in loader:
            seen.update(batch["index"].tolist())
            marked.update(batch["index"][~batch["ok"]].tolist())
            assert len(batch["skipped"]) == (~batch["ok"]).sum()
    assert seen == Counter(range(100))
    assert marked <= BROKEN  # the two sampled frames may miss the broken image of video 7
    assert marked >= BROKEN - {7}


def test_an_epoch_resumes_with_another_number_of_ranks(records):
    """With the same global batch size, each step has the same videos for any number of ranks."""

    def order(ranks, done):
        batches = []
        for rank in range(ranks):
            dataset = VideoDataset(records, views=(2,), preprocessing=PLAIN, train=True)
            loader = make_loader(
                dataset, batch_size=16 // ranks, train=True, rank=rank, world_size=ranks
            )
            loader.sampler.set_epoch(5, skip_batches=done)
            keys = [index for _, index in loader.sampler]
            size = 16 // ranks
            batches.append([keys[i : i + size] for i in range(0, len(keys), size)])
        return [sorted(chain(*parts)) for parts in zip(*batches, strict=True)]

    whole = order(1, 0)
    assert len(whole) == 6
    for ranks in (1, 2, 4):
        assert order(ranks, 0) == whole
        assert order(ranks, 2) == whole[2:]


def memory(process):
    """Anonymous memory of a process in MiB; a page shared by n processes counts as 1/n (Linux)."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    lines = dict(line.split(":") for line in text.splitlines() if "kB" in line)
    return int(lines["Pss_Anon"].split()[0]) / 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
@pytest.mark.parametrize("format", ["video", "store"])
def test_memory_stays_flat_over_twenty_epochs(format, write_video, tmp_path):
    """500 clips, 20 epochs: no process has more memory at the end than after a quarter."""
    files = [write_video(tmp_path / f"{i}.mp4", 40, width=96, height=64) for i in range(10)]
    records = [Record(path, i % 5) for i, path in enumerate(50 * files)]
    source = {}
    if format == "store":
        from ffn.data import ClipStore, pack

        pack(records, tmp_path / "store")
        source = {"source": ClipStore(tmp_path / "store").open_record}
    dataset = VideoDataset(
        records,
        views=(4, 8, 16),
        preprocessing=Preprocessing(crop=56, resize=64),
        train=True,
        **source,
    )
    loader = make_loader(dataset, batch_size=10, workers=2, train=True)
    used = []
    for epoch in range(20):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            assert len(batch["label"]) == 10
        workers = [worker.pid for worker in loader._iterator._workers]
        used.append([memory(process) for process in (os.getpid(), *workers)])
    print(format, "MiB of parent and workers:", [[round(x, 1) for x in row] for row in used[::5]])
    # The allocator's reserve varies by about 10 MiB. A decoder has 100 KiB: one left per sample
    # would take 500 MiB.
    for process in zip(*used, strict=True):
        assert median(process[-5:]) - median(process[5:10]) < 30  # MiB, 5,000 samples later
