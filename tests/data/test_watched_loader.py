"""Errors of loader workers that hang or exit, and the videos that they name."""

from __future__ import annotations

import gc
import os
import signal
import time

import pytest
import torch

from ffn.data import (
    LoaderError,
    Preprocessing,
    Record,
    VideoDataset,
    VideoError,
    make_loader,
    watching,
)

PLAIN = Preprocessing(crop=16, resize=16)


class FaultyDataset(VideoDataset):
    """Videos that hang or kill their process, by name."""

    def _open(self, record, index):
        if "hangs" in record.path:
            time.sleep(120)
        if "dies" in record.path:
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._open(record, index)


@pytest.fixture(scope="module", autouse=True)
def _short_waits():
    """torch waits for each worker that hangs, 5 s by default, before it ends the worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.5)
        yield
        gc.collect()  # ends the loaders of failed tests


@pytest.fixture(scope="module")
def folder(write_folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("videos")
    for name in ("a", "b", "c", "hangs", "dies"):
        write_folder(root / name, 4)
    return root


def loader(folder, names, timeout=0.0):
    records = [Record(str(folder / name), 0) for name in names]
    dataset = FaultyDataset(records, views=(2,), preprocessing=PLAIN)
    return make_loader(dataset, batch_size=1, workers=2, timeout=timeout)


def test_a_hanging_video_is_named_after_the_timeout(folder):
    started = time.monotonic()
    with pytest.raises(LoaderError) as caught:
        list(loader(folder, ["a", "b", "hangs", "c"], timeout=2))
    assert time.monotonic() - started < 30
    assert "no batch within 2 s; worker " in str(caught.value)
    assert f"has been reading {folder / 'hangs'} for " in str(caught.value)
    assert str(folder / "c") not in str(caught.value)  # its worker is idle


def test_the_video_of_a_dead_worker_is_named(folder, start_method):
    with pytest.raises(LoaderError) as caught:
        list(loader(folder, ["a", "dies", "b", "c"]))
    assert "a worker exited unexpectedly (" in str(caught.value)
    assert f"has been reading {folder / 'dies'} for " in str(caught.value)


def test_video_errors_of_workers_are_those_of_the_dataset(folder, start_method):
    faulty = loader(folder, ["a", "absent"], timeout=20)
    with pytest.raises(VideoError) as alone:
        faulty.dataset[1]
    message = f"{folder / 'absent'}: no such file or folder; set data.on_error=skip"
    assert str(alone.value).startswith(message)
    with pytest.raises(VideoError) as caught:
        list(faulty)
    assert str(caught.value) == str(alone.value)


def test_no_error_before_the_timeout(folder, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert len(list(loader(folder, ["a", "hangs", "b"], timeout=20))) == 3


def test_worker_that_exits_during_a_save(folder):
    """torch.save then reports a file of the wrong length."""

    class Interrupted:
        def write(self, data):
            raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed.")

    with (
        pytest.raises(LoaderError, match=r"a worker exited unexpectedly \(worker \(pid 1\) is kil"),
        watching(loader(folder, ["a"])),
    ):
        torch.save({"weight": torch.zeros(1000)}, Interrupted())


def test_the_error_of_a_save_alone_is_not_changed(folder):
    class Full:
        def write(self, data):
            raise OSError("no space")

    with pytest.raises((RuntimeError, OSError)) as caught, watching(loader(folder, ["a"])):
        torch.save({"weight": torch.zeros(1000)}, Full())
    assert not isinstance(caught.value, LoaderError)
