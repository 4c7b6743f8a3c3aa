from __future__ import annotations

import os
import time

import pytest

from ffn.data import Record
from ffn.datasets import checking
from ffn.datasets.checking import check_videos


@pytest.fixture(scope="module")
def videos(write_video, write_folder, tmp_path_factory):
    """Path by name."""
    folder = tmp_path_factory.mktemp("videos")
    paths = {name: write_video(folder / f"{name}.mp4", 20) for name in ("good", "slow", "crash")}
    paths["mkv"] = write_video(folder / "mkv.mkv", 20)
    paths["folder"] = write_folder(folder / "folder", 10)
    paths["absent"] = str(folder / "absent.mp4")
    paths["cut"] = str(folder / "cut.mkv")
    write_video(folder / "cut.mkv", 50, stream={"g": "8", "bf": "0"})
    os.truncate(paths["cut"], os.path.getsize(paths["cut"]) // 2)
    paths["damaged"] = write_video(folder / "damaged.mp4", 40)
    with open(paths["damaged"], "r+b") as file:
        data = file.read()
        file.seek(data.index(b"mdat") + 3 * (data.index(b"moov") - data.index(b"mdat")) // 4)
        file.write(bytes(40))
    return paths


def found(videos, names, listed=None, **options):
    records = [Record(videos[name], 0, listed) for name in names]
    findings = list(check_videos(records, **options))
    assert [finding.index for finding in findings] == list(range(len(names)))
    return dict(zip(names, findings, strict=True))


def test_each_video_gets_its_finding(videos):
    findings = found(videos, ("good", "absent", "mkv", "folder", "cut", "damaged"), workers=2)
    statuses = [finding.status for finding in findings.values()]
    assert statuses == ["ok", "bad", "ok", "ok", "short", "bad"]
    assert findings["good"].frames == findings["mkv"].frames == 20
    assert findings["folder"].frames == 10
    assert findings["absent"].cause == "no such file or folder"
    assert findings["cut"].cause.endswith("its header has 2.0 s")
    assert not findings["damaged"].usable


def test_counts_and_times_of_the_list_are_compared(videos):
    finding = found(videos, ["mkv"], listed=25)["mkv"]
    assert (finding.status, finding.frames) == ("count", 20)
    assert finding.cause == "25 frames listed, 20 decoded"
    record = Record(videos["good"], 0, start=3.0, end=4.0)
    assert "no frame in the part" in next(check_videos([record])).cause
    assert found(videos, ["damaged"], frames=1)["damaged"].status == "ok"  # frame 0
    for name, value in {"frames": 0, "timeout": 0}.items():
        with pytest.raises(ValueError, match="expected"):
            found(videos, ["good"], **{name: value})


def test_a_video_that_hangs_or_crashes_is_bad_and_the_others_are_checked(videos, monkeypatch):
    original = checking.open_video

    def open_badly(path, **options):
        if path == videos["slow"]:
            time.sleep(60)
        if path == videos["crash"]:
            os._exit(7)
        return original(path, **options)

    monkeypatch.setattr(checking, "open_video", open_badly)  # processes that fork have it
    started = time.monotonic()
    findings = found(videos, ("good", "slow", "mkv", "crash", "folder"), workers=2, timeout=2)
    assert time.monotonic() - started < 30
    assert [finding.status for finding in findings.values()] == ["ok", "bad", "ok", "bad", "ok"]
    assert findings["slow"].cause == "timed out after 2 s"
    assert findings["crash"].cause == "the worker process exited unexpectedly (exit code 7)"
