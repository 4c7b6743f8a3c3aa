from __future__ import annotations

import os
import signal
import time

import pytest

from ffn.data import LoaderError, Preprocessing, Record, VideoDataset, VideoError, make_loader

PLAIN = Preprocessing(crop=16, resize=16)


class Troubled(VideoDataset):
    """Videos that hang, end their process or raise, by name."""

    def _open(self, record, index):
        if "hangs" in record.path:
            time.sleep(120)
        if "dies" in record.path:
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._open(record, index)


@pytest.fixture(scope="module")
def folder(write_folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("videos")
    for name in ("a", "b", "c", "hangs", "dies"):
        write_folder(place / name, 4)
    return place


def loader(folder, names, timeout=0.0):
    records = [Record(str(folder / name), 0) for name in names]
    dataset = Troubled(records, views=(2,), preprocessing=PLAIN)
    return make_loader(dataset, batch_size=1, workers=2, timeout=timeout)


def test_a_video_that_hangs_is_named_in_time(folder):
    started = time.monotonic()
    with pytest.raises(LoaderError) as caught:
        list(loader(folder, ["a", "b", "hangs", "c"], timeout=2))
    assert time.monotonic() - started < 30
    assert "no batch came for 2 s; worker " in str(caught.value)
    assert f"has been at {folder / 'hangs'} for " in str(caught.value)
    assert str(folder / "c") not in str(caught.value)  # its worker is done


def test_a_worker_that_dies_is_an_error_that_names_its_video(folder):
    with pytest.raises(LoaderError) as caught:
        list(loader(folder, ["a", "dies", "b", "c"]))
    assert "a worker ended (" in str(caught.value)
    assert f"has been at {folder / 'dies'} for " in str(caught.value)


def test_errors_of_videos_come_as_they_are(folder):
    with pytest.raises(VideoError, match="absent: no such file"):
        list(loader(folder, ["a", "absent"], timeout=20))


def test_slow_videos_within_the_time_are_no_error(folder, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert len(list(loader(folder, ["a", "hangs", "b"], timeout=20))) == 3
