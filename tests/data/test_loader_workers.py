"""Workers of the loader: the same samples, flat memory, and errors of lost workers."""

from __future__ import annotations

import gc
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import pytest
import torch
from video_fixtures import AUGMENTATIONS

from ffn.data import (
    ClipStore,
    LoaderError,
    Preprocessing,
    Record,
    TrainTransform,
    VideoDataset,
    VideoError,
    loader,
    make_loader,
    pack,
    watching,
)

pytestmark = pytest.mark.slow
SMALL = Preprocessing(crop=16, resize=16)


@pytest.fixture(params=["fork", "forkserver"])
def start_method(request, monkeypatch):
    """Start method of the workers of `make_loader`."""
    monkeypatch.setattr(loader, "worker_start_method", lambda: request.param)


@pytest.fixture(scope="module", autouse=True)
def _short_waits():
    """torch waits for each worker that hangs, 5 s by default, before it ends the worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.5)
        yield
        gc.collect()  # ends the loaders of failed tests


class FaultyDataset(VideoDataset):
    """Counts the videos that a process opens; some hang or kill their process, by name."""

    opened = 0

    def _open_file(self, record):
        self.opened += 1
        if "hangs" in record.path:
            time.sleep(120)
        if "dies" in record.path:
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._open_file(record)

    def __getitem__(self, key):
        return {**super().__getitem__(key), "index": self.opened}


@pytest.fixture(scope="module")
def folder(write_folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("videos")
    for name in ("a", "b", "c", "hangs", "dies"):
        write_folder(root / name, 12, size=(32, 32))
    return root


def faulty(folder, names, timeout=0.0):
    records = [Record(str(folder / name), 0) for name in names]
    dataset = FaultyDataset(records, views=(2,), preprocessing=SMALL)
    return make_loader(dataset, batch_size=1, workers=2, timeout=timeout)


def test_workers_give_the_same_samples(folder, start_method):
    """With every option of a training transform, and with cached videos in the second epoch."""
    records = [Record(str(folder / "abc"[i % 3]), i) for i in range(12)]
    transform = TrainTransform(SMALL, **AUGMENTATIONS)
    options = {"views": (2, 4), "preprocessing": SMALL, "train": True, "transform": transform}
    data = FaultyDataset(records, cache_bytes=2**24, **options)
    helped = make_loader(data, batch_size=4, train=True, workers=1)
    plain = VideoDataset(records, **options)
    alone = make_loader(plain, batch_size=4, train=True)
    for epoch in (0, 1):
        for one in (alone, helped):
            one.sampler.set_epoch(epoch)
        for expected, batch in zip(alone, helped, strict=True):
            assert torch.equal(batch["label"], expected["label"])
            assert all(torch.equal(batch["clips"][v], expected["clips"][v]) for v in (2, 4))
        assert batch["index"].max() == len(records)  # no video is opened again in epoch 1


def test_workers_share_the_records(folder, start_method):
    """A write of the main process is visible in a running worker."""
    records = [Record(str(folder / "a"), i) for i in range(4)]
    data = VideoDataset(records, views=(2,), preprocessing=SMALL)
    loader = make_loader(data, batch_size=4, workers=1)
    assert [batch["label"].tolist() for batch in loader] == [[0, 1, 2, 3]]
    text = bytes(data.records._text.tolist())  # JSON: [path, label, …]
    data.records._text[text.index(b", 2, null") + 2] = ord("7")
    assert [batch["label"].tolist() for batch in loader] == [[0, 1, 7, 3]]


def test_hanging_and_dead_workers_are_errors(folder, start_method):
    for name, timeout, cause in (("hangs", 2, "timed out after 2 s"), ("dies", 0, "worker|lost")):
        started = time.monotonic()
        with pytest.raises(LoaderError, match=cause), watching():
            list(faulty(folder, ["a", "b", name, "c"], timeout))
        assert time.monotonic() - started < 30


def test_video_errors_of_workers_are_those_of_the_dataset(folder, start_method):
    loader = faulty(folder, ["a", "absent"])
    with pytest.raises(VideoError) as alone:
        loader.dataset[1]
    assert str(alone.value).startswith(f"{folder / 'absent'}: no such file or folder; set data.on")
    with pytest.raises(VideoError) as caught, watching():
        list(loader)
    assert str(caught.value) == str(alone.value)


def memory(process):
    """Anonymous memory of a process in MiB; a page shared by n processes counts as 1/n (Linux)."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    lines = dict(line.split(":") for line in text.splitlines() if "kB" in line)
    return int(lines["Pss_Anon"].split()[0]) / 1024


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
@pytest.mark.parametrize("format", ["video", "store"])
def test_memory_stays_flat(format, write_video, tmp_path):
    """300 clips, 12 epochs: no process has more memory at the end than after a quarter."""
    files = [write_video(tmp_path / f"{i}.mp4", 40, width=96, height=64) for i in range(10)]
    records = [Record(path, i % 5) for i, path in enumerate(30 * files)]
    if format == "store":
        pack(records, tmp_path / "store")
    # Not in this process, which shares the memory of earlier tests with other ones.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        used = pool.submit(load_epochs, records, tmp_path / "store").result()
    # The allocator's reserve varies by about 10 MiB. A decoder has 100 KiB: one left per sample
    # would take 180 MiB.
    for process in zip(*used, strict=True):
        assert median(process[-3:]) - median(process[3:6]) < 30  # MiB, 1,800 samples later


def load_epochs(records, store):
    """Load 12 epochs; the memory of this process and of its workers after each."""
    source = ClipStore(store).open_record if store.exists() else None
    sizes = Preprocessing(crop=56, resize=64)
    dataset = VideoDataset(
        records, views=(4, 8, 16), preprocessing=sizes, train=True, source=source
    )
    loader = make_loader(dataset, batch_size=10, workers=2, train=True)
    used = []
    for epoch in range(12):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            assert len(batch["label"]) == 10
        workers = [worker.pid for worker in loader._iterator._workers]
        used.append([memory(process) for process in (os.getpid(), *workers)])
    return used
