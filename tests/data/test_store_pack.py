"""Packing: interrupted and resumed, appended to, refused, with hanging and crashing videos."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from ffn import data
from ffn.data import ClipStore, Record, StoreError
from ffn.data.store import packing

pytest.importorskip("av")
SHARD = 48_000 / 2**20  # MiB, about three clips
pack = partial(data.pack, shard_mib=SHARD)
SLOW_PACK = """
import sys, time
from ffn.data import Record, pack
from ffn.data.store import packing
root, folder, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
add = packing._Writer.add
def slowly(self, *given):
    add(self, *given)
    print("packed", flush=True)
    time.sleep(0.1)
packing._Writer.add = slowly
records = [Record(f"{root}/videos/{i}.mkv", i) for i in range(10)]
pack(records, folder, root=root, workers=workers, shard_mib=float(sys.argv[4]))
"""


@pytest.fixture(scope="module")
def whole(root, records, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    pack(records, folder, root=root)
    return folder


def content(folder):
    """Name and bytes of the files of a store; rows of its index."""
    found = {p.name: p.read_bytes() for p in folder.glob("shard-*")}
    store = ClipStore(folder)
    return found, store._clips("ORDER BY rowid"), store.unreadable, store.verify()


def names(folder):
    """Names of its files, without the hash in that of the index."""
    found = sorted(path.name for path in folder.iterdir() if path.name != "pack.lock")
    return ["index" if name.startswith("index-") else name for name in found]


def start(root, folder, workers=0):
    return subprocess.Popen(
        [sys.executable, "-c", SLOW_PACK, str(root), str(folder), str(workers), str(SHARD)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


@pytest.mark.slow
def test_workers_change_nothing(whole, root, records, tmp_path):
    report = pack(records, tmp_path / "s", root=root, workers=2)
    assert content(tmp_path / "s") == content(whole)
    shards = [f"shard-{n:05d}.bin" for n in range(4)]
    assert names(whole) == ["index", *shards, "store.json"]
    sizes = [(whole / name).stat().st_size for name in shards]
    assert max(sizes) <= 48_000
    found = report.manifest
    assert (report.packed, found.clips, found.frames, found.bytes) == (10, 10, 120, sum(sizes))


class Stopped(Exception):
    pass


def stop_at(patch, count):
    """Have the call number `count` that changes the disk permanently fail."""
    calls = []

    def stopping(original):
        def call(*given, **options):
            calls.append(1)
            if len(calls) == count:
                raise Stopped
            return original(*given, **options)

        return call

    for owner, name in ((os, "replace"), (os, "fsync"), (Path, "unlink")):
        patch.setattr(owner, name, stopping(getattr(owner, name)))


def test_stopped_at_any_moment(root, records, tmp_path, monkeypatch):
    pack(records[:5], tmp_path / "whole", root=root)
    expected = content(tmp_path / "whole")
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    for count in sorted(random.Random(seed).sample(range(1, 30), 6)):
        folder = tmp_path / str(count)
        with monkeypatch.context() as patch:
            stop_at(patch, count)
            with suppress(Stopped):
                pack(records[:5], folder, root=root)
        pack(records[:5], folder, root=root)
        assert content(folder) == expected, count
        assert names(folder) == names(tmp_path / "whole"), count


@pytest.mark.slow
def test_killed_pack_is_continued_and_its_workers_end(whole, root, records, tmp_path):
    folder = tmp_path / "s"
    process = start(root, folder, workers=2)
    for _ in range(5):
        assert process.stdout.readline() == b"packed\n"
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    children = listed.read_text().split() if listed.exists() else []
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    with pytest.raises(StoreError):
        ClipStore(folder)
    report = pack(records, folder, root=root)
    assert report.packed + report.kept == 10
    assert report.kept >= 3
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline, "workers are left"
        time.sleep(0.1)


def test_clips_are_added_to_a_store(whole, root, records, tmp_path):
    folder = tmp_path / "s"
    pack(records[:4], folder, root=root)
    before, reader = content(folder), ClipStore(folder, root=root)
    report = pack(records, folder, root=root)
    assert (report.packed, report.kept, report.manifest.clips) == (6, 4, 10)
    after = content(folder)
    assert before[0].items() <= after[0].items()
    assert after[3] == []
    assert [clip.key for clip in after[1]] == [b"videos/%d.mkv" % i for i in range(10)]
    assert len(reader) == 4  # an open reader can still read
    assert len(reader.open_record(records[1]).read([0])) == 1

    more, reader = [*records, Record(records[0].path, 0, start=0.2)], ClipStore(folder, root=root)
    pack(more, folder, root=root)
    assert len([*folder.glob("index-*")]) == 2
    again = pack(more, folder, root=root)
    assert (again.packed, again.kept, again.manifest.clips) == (0, 11, 11)
    assert len(reader.open_record(records[1]).read([0])) == 1


def test_what_is_there_is_not_changed(whole, root, records, tmp_path):
    before = {path.name: path.read_bytes() for path in whole.iterdir()}
    assert pack(records, whole, root=root).kept == 10
    with pytest.raises(StoreError, match=r"\(256, 90\), not \(100, 90\)"):
        pack(records, whole, root=root, short_side=100)
    assert {path.name: path.read_bytes() for path in whole.iterdir()} == before

    (tmp_path / "holiday.jpg").write_text("mine")
    with pytest.raises(FileExistsError, match=r"holds holiday\.jpg"):
        pack(records, tmp_path, root=root)
    assert names(tmp_path) == ["holiday.jpg"]


@pytest.mark.slow
def test_two_packs_at_once_are_refused(root, records, tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "LOCK_TIMEOUT", 0)
    process = start(root, tmp_path / "s")
    assert process.stdout.readline() == b"packed\n"
    with pytest.raises(StoreError, match="another process packs into"):
        pack(records, tmp_path / "s", root=root)
    assert process.wait(timeout=60) == 0
    assert len(ClipStore(tmp_path / "s")) == 10


def test_unreadable_videos_are_listed_and_the_rest_packed(write_folder, root, records, tmp_path):
    broken = tmp_path / "broken.mp4"
    broken.write_text("no video")
    images = write_folder(tmp_path / "frames", 5)
    Image.new("RGB", (60, 48)).save(Path(images) / "00004.jpg")
    late = Record(records[1].path, 1, start=100.0)
    some = [records[0], Record(str(broken), 1), late, Record(images, 0), records[2], records[0]]
    report = pack(some, tmp_path / "s", root=root)
    assert report.packed == report.manifest.clips == 2
    assert [one[:3] for one in report.unreadable] == [
        (str(broken), None, None),
        ("videos/1.mkv", 100.0, None),
        (images, None, None),
    ]
    assert report.unreadable[2].reason == "frame 3: is 60 x 48 pixels, others 64 x 48"
    store = ClipStore(tmp_path / "s", root=root)
    assert store.unreadable == report.unreadable
    with pytest.raises(Exception, match=r"broken\.mp4: could not be packed .*not a video"):
        store.open_record(some[1])

    broken.write_bytes(Path(records[3].path).read_bytes())
    mended = pack(some, tmp_path / "s", root=root)
    assert (mended.packed, len(mended.unreadable)) == (1, 2)
    assert ClipStore(tmp_path / "s").unreadable == mended.unreadable


@pytest.mark.slow
def test_a_video_that_hangs_or_crashes_its_process_is_unreadable(
    root, records, tmp_path, monkeypatch
):
    """Workers that fork have the replaced encoder; the other videos are packed."""
    encode = packing.encode_clip

    def encode_badly(record, *options):
        if record.label == 2:
            time.sleep(60)
        if record.label == 4:
            faulthandler.disable()  # of pytest
            os.kill(os.getpid(), signal.SIGSEGV)
        return encode(record, *options)

    with monkeypatch.context() as patch:
        patch.setattr(packing, "encode_clip", encode_badly)
        report = pack(records, tmp_path / "s", root=root, workers=2, timeout=2)
    assert [one.key for one in report.unreadable] == ["videos/2.mkv", "videos/4.mkv"]
    assert report.packed == 8
    assert ClipStore(tmp_path / "s").verify() == []
    again = pack(records, tmp_path / "s", root=root)
    assert (again.packed, again.kept, again.unreadable) == (2, 8, [])


def test_a_full_disk_stops_the_pack_and_marks_no_video(root, records, tmp_path, monkeypatch):
    def full(**options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(packing.tempfile, "mkstemp", full)
        with pytest.raises(OSError, match="No space left"):
            pack(records, tmp_path / "s", root=root)
    report = pack(records, tmp_path / "s", root=root)
    assert (report.packed, report.unreadable) == (10, [])


def test_wrong_options_are_refused(records, tmp_path):
    for name, value in ("quality", 101), ("short_side", 0), ("records", []):
        with pytest.raises(ValueError, match=name):
            pack(**{"records": records, "folder": tmp_path / "s", name: value})
    assert not (tmp_path / "s").exists()
