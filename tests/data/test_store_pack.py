"""Packing: interrupted and resumed, appended to, refused, with hanging and crashing videos."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from store_clips import packed, write_set

from ffn.data import ClipStore, Record, StoreError, open_video, pack
from ffn.data.store import packing
from ffn.data.store import writer as writer_module

pytest.importorskip("av")

SLOW_PACK = """
import sys, time
from ffn.data import Record, pack
import ffn.data.store.writer as writer
root, folder, count, workers = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
add = writer.StoreWriter.add
def slowly(self, *given):
    add(self, *given)
    print("packed", flush=True)
    time.sleep(0.1)
writer.StoreWriter.add = slowly
records = [Record(f"{root}/videos/{i}.mkv", i) for i in range(count)]
pack(records, folder, root=root, format="raw", shard_mib=1, workers=workers)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("set")


@pytest.fixture(scope="module")
def records(root):
    return write_set(root, clips=10, frames=30)  # 0.26 MiB each: three to a shard


@pytest.fixture(scope="module")
def whole(root, records):
    return packed(root, records, root / "whole")


def content(folder):
    """Name and bytes of all files of a store but its lock."""
    files = sorted(path for path in folder.iterdir() if path.name != "pack.lock")
    return {path.name: path.read_bytes() for path in files}


def test_workers_and_order_of_finishing_change_nothing(whole, root, records, tmp_path):
    assert content(packed(root, records, tmp_path / "s", workers=2)) == content(whole)
    assert sorted(content(whole)) == [
        "index-00001.bin",
        *(f"shard-{n:05d}.bin" for n in range(4)),
        "store.json",
    ]
    sizes = [shard.bytes for shard in ClipStore(whole).manifest.shards]
    assert max(sizes) <= 2**20
    assert [len(data) for name, data in content(whole).items() if "shard" in name] == sizes


@pytest.mark.parametrize("clips_before_kill", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_killed_pack_is_continued(clips_before_kill, whole, root, records, tmp_path):
    folder = tmp_path / "s"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_PACK, str(root), str(folder), "10", "0"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    for _ in range(clips_before_kill):
        assert process.stdout.readline() == b"packed\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (folder / "store.json").exists()
    with pytest.raises(StoreError, match="finish the interrupted pack"):
        ClipStore(folder)

    # The state after a kill in the middle of a write.
    part = next(folder.glob("*.part"))
    with part.open("ab") as file:
        file.write(b"half a clip")
    with (folder / "pack.journal").open("ab") as file:
        file.write(b'{"clip": {"key": "fil')
    report = pack(records, folder, root=root, format="raw", shard_mib=1)
    assert (report.packed, report.kept) == (10 - clips_before_kill, clips_before_kill)
    assert content(folder) == content(whole)


def children(process):
    """Numbers of the processes that a process has started, where the system lists them."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(number) for number in path.read_text().split()] if path.exists() else []


@pytest.mark.slow
def test_workers_end_with_a_killed_pack(root, records, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_PACK, str(root), str(tmp_path / "s"), str(len(records)), "2"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout.readline() == b"packed\n"
    workers = children(process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    if not workers:
        pytest.skip("this system does not tell which processes a process has started")
    assert len(workers) == 2
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline, "workers are left"
        time.sleep(0.1)


class Stopped(Exception):
    pass


def stop_at(monkeypatch, owner, name, count):
    """Have a function fail at its call number `count`, before it does anything."""
    calls, original = [], getattr(owner, name)

    def failing(*given, **options):
        calls.append(1)
        if len(calls) == count:
            raise Stopped
        return original(*given, **options)

    monkeypatch.setattr(owner, name, failing)


# Every call that changes the folder permanently, in the order of a pack.
MOMENTS = [
    ("os.replace", n)
    for n in range(1, 8)  # the journal, four shards, the index, store.json
] + [("os.fsync", n) for n in (1, 2, 3, 4, 5, 9)]


@pytest.mark.parametrize(("function", "count"), MOMENTS)
def test_stopped_at_any_moment(function, count, whole, root, records, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(patch, os, function.removeprefix("os."), count)
        with pytest.raises(Stopped):
            packed(root, records, tmp_path / "s")
    assert content(packed(root, records, tmp_path / "s")) == content(whole)


def test_stopped_before_the_journal_is_deleted(whole, root, records, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        unlink = Path.unlink

        def stop_at_journal(path, **options):
            if path.name == "pack.journal":
                raise Stopped
            unlink(path, **options)

        patch.setattr(Path, "unlink", stop_at_journal)
        with pytest.raises(Stopped):
            packed(root, records, tmp_path / "s")
    assert (tmp_path / "s" / "pack.journal").exists()
    report = pack(records, tmp_path / "s", root=root, format="raw", shard_mib=1)
    assert (report.packed, report.kept) == (0, 10)
    assert content(tmp_path / "s") == content(whole)


def test_lost_bytes_of_the_open_shard_are_packed_again(whole, root, records, tmp_path, monkeypatch):
    """After a loss of power, the journal may have more clips than the shard."""
    with monkeypatch.context() as patch:
        stop_at(patch, writer_module.StoreWriter, "add", 6)
        with pytest.raises(Stopped):
            packed(root, records, tmp_path / "s")
    part = next((tmp_path / "s").glob("*.part"))
    data = bytearray(part.read_bytes())
    data[300_000:] = bytes(len(data) - 300_000)  # in its second clip
    part.write_bytes(data)
    report = pack(records, tmp_path / "s", root=root, format="raw", shard_mib=1)
    assert report.kept == 4
    assert content(tmp_path / "s") == content(whole)


def test_unfinished_pack_with_other_options_is_left_alone(root, records, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(patch, writer_module.StoreWriter, "add", 3)
        with pytest.raises(Stopped):
            packed(root, records, tmp_path / "s")
    before = content(tmp_path / "s")
    with pytest.raises(StoreError, match=r"unfinished pack with .*'short_side': 256"):
        packed(root, records, tmp_path / "s", short_side=32)
    assert content(tmp_path / "s") == before
    (tmp_path / "s" / "shard-00000.bin.part").rename(tmp_path / "s" / "moved")
    report = pack(records, tmp_path / "s", root=root, format="raw", shard_mib=1)
    assert report.kept == 0  # nothing of it is there any more, so all is packed again


def test_clips_are_added_to_a_store(root, records, tmp_path):
    folder = packed(root, records[:4], tmp_path / "s")
    first, reader = content(folder), ClipStore(folder, root=root)
    with pytest.raises(StoreError, match=r"lacks 6 of the videos, such as videos/4\.mkv"):
        packed(root, records, folder)
    assert content(folder) == first

    report = pack(records, folder, root=root, format="raw", shard_mib=1, append=True)
    assert (report.packed, report.kept, report.clips) == (6, 4, 10)
    after = content(folder)
    assert all(after[name] == data for name, data in first.items() if name != "store.json")
    store = ClipStore(folder, root=root)
    assert store.verify() == []
    assert [key for key, *_ in store.clips()] == [f"videos/{i}.mkv" for i in range(10)]
    for record in records:
        expected = open_video(record.path).read(range(30))
        assert torch.equal(store.open_record(record).read(range(30)), expected)
    assert len(reader.open_record(records[1]).read([0])) == 1  # an open reader can still read
    assert len(reader) == 4

    packed(root, [*records, Record(records[0].path, 0, start=0.2)], folder, append=True)
    assert sorted(p.name for p in folder.glob("index-*")) == ["index-00002.bin", "index-00003.bin"]


def test_killed_append_is_continued(root, records, tmp_path, monkeypatch):
    folder = packed(root, records[:4], tmp_path / "s")
    with monkeypatch.context() as patch:
        stop_at(patch, writer_module.StoreWriter, "add", 5)
        with pytest.raises(Stopped):
            packed(root, records, folder, append=True)
    assert len(ClipStore(folder)) == 4  # what was finished can be read all the time
    report = pack(records, folder, root=root, format="raw", shard_mib=1)
    assert (report.packed, report.kept, report.clips) == (2, 8, 10)
    once = packed(root, records[:4], tmp_path / "t")
    assert content(packed(root, records, once, append=True)) == content(folder)


def test_finished_pack_again_does_nothing(whole, root, records):
    def times():  # some versions of filelock touch the lock
        return {p.name: p.stat().st_mtime_ns for p in whole.iterdir() if p.name != "pack.lock"}

    before, then = content(whole), times()
    report = pack(records, whole, root=root, format="raw", shard_mib=1)
    assert (report.packed, report.kept, report.clips, report.frames) == (0, 10, 10, 300)
    assert content(whole) == before
    assert times() == then


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "jpeg"}, "store with format raw, not jpeg"),
        ({"short_side": 100}, "store with short_side 256, not 100"),
    ],
)
def test_store_of_other_options_is_not_touched(options, message, whole, root, records):
    before = content(whole)
    with pytest.raises(StoreError, match=message):
        packed(root, records, whole, append=True, **options)
    assert content(whole) == before


def test_folder_of_other_things_is_not_touched(root, records, tmp_path):
    (tmp_path / "holiday.jpg").write_text("mine")
    with pytest.raises(FileExistsError, match=r"holds holiday\.jpg"):
        packed(root, records, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["holiday.jpg"]


def test_shards_that_no_store_names_are_not_overwritten(root, records, tmp_path):
    folder = packed(root, records[:2], tmp_path / "s")
    (folder / "shard-00001.bin").write_text("of another time")
    with pytest.raises(FileExistsError, match=r"shard-00001\.bin, which is not part"):
        packed(root, records, folder, append=True)
    assert (folder / "shard-00001.bin").read_text() == "of another time"


def test_two_packs_at_once_are_refused(root, records, tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "LOCK_TIMEOUT", 0)
    folder = tmp_path / "s"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_PACK, str(root), str(folder), "10", "0"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout.readline() == b"packed\n"
    with pytest.raises(StoreError, match="another process packs into"):
        packed(root, records, folder)
    assert process.wait(timeout=60) == 0
    assert len(ClipStore(folder)) == 10


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_videos_are_listed_and_the_rest_packed(workers, root, records, tmp_path):
    broken = tmp_path / "broken.mp4"
    broken.write_text("no video")
    late = Record(records[1].path, 1, start=100.0)
    some = [records[0], Record(str(broken), 1), late, records[2]]
    report = pack(some, tmp_path / "s", root=root, format="raw", workers=workers)
    assert report.packed == 2
    assert [one[:3] for one in report.unreadable] == [
        (str(broken), None, None),
        ("videos/1.mkv", 100.0, None),
    ]
    assert "not a video" in report.unreadable[0].reason
    store = ClipStore(tmp_path / "s", root=root)
    assert store.manifest.unreadable == report.unreadable
    with pytest.raises(Exception, match=r"broken\.mp4: could not be packed .*not a video"):
        store.open_record(some[1])

    again = pack(some, tmp_path / "s", root=root, format="raw")
    assert (again.packed, again.unreadable) == (0, report.unreadable)
    broken.write_bytes(Path(records[3].path).read_bytes())
    mended = pack(some, tmp_path / "s", root=root, format="raw", append=True)
    assert (mended.packed, len(mended.unreadable)) == (1, 1)
    assert [one.key for one in ClipStore(tmp_path / "s").manifest.unreadable] == ["videos/1.mkv"]


def test_a_video_that_hangs_or_crashes_its_process_is_unreadable(
    root, records, tmp_path, monkeypatch
):
    """Workers that fork have the replaced encoder; the other videos are packed."""
    encode = packing.encode_clip

    def encode_badly(record, **options):
        if record.label == 2:
            time.sleep(60)
        if record.label == 4:
            faulthandler.disable()  # of pytest
            os.kill(os.getpid(), signal.SIGSEGV)
        if record.label == 6:
            os._exit(7)
        return encode(record, **options)

    folder = tmp_path / "s"
    with monkeypatch.context() as patch:
        patch.setattr(packing, "encode_clip", encode_badly)
        started = time.monotonic()
        report = pack(records, folder, root=root, format="raw", workers=2, timeout=2)
    assert time.monotonic() - started < 30
    assert [(one.key, one.reason) for one in report.unreadable] == [
        ("videos/2.mkv", "timed out after 2 s"),
        ("videos/4.mkv", "the worker process exited unexpectedly (SIGSEGV)"),
        ("videos/6.mkv", "the worker process exited unexpectedly (exit code 7)"),
    ]
    assert report.packed == 7
    store = ClipStore(folder, root=root)
    assert store.verify() == []
    assert store.manifest.unreadable == report.unreadable
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["index-00001.bin", "pack.lock", "shard-00000.bin", "store.json"]
    )

    again = pack(records, folder, root=root, format="raw", append=True)
    assert (again.packed, again.kept, again.unreadable) == (3, 7, [])


def test_a_full_disk_stops_the_pack_and_marks_no_video(root, records, tmp_path, monkeypatch):
    def full(**options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(packing.tempfile, "mkstemp", full)
        with pytest.raises(OSError, match="No space left"):
            packed(root, records, tmp_path / "s", workers=1)
    report = pack(records, tmp_path / "s", root=root, format="raw", shard_mib=1)
    assert (report.packed, report.unreadable) == (10, [])


def test_files_of_a_killed_pack_are_removed(whole, root, records, tmp_path, monkeypatch):
    folder = tmp_path / "s"
    with monkeypatch.context() as patch:
        stop_at(patch, writer_module.StoreWriter, "add", 3)
        with pytest.raises(Stopped):
            packed(root, records, folder)
    (folder / ".store.json.123.part").write_text("half")
    (folder / "pack.tmp").mkdir()
    (folder / "pack.tmp/clip").write_text("half")
    assert content(packed(root, records, folder, workers=1)) == content(whole)


def test_folder_of_images_of_two_sizes_is_unreadable(write_folder, tmp_path):
    from PIL import Image

    folder = write_folder(tmp_path / "frames", 5)
    Image.new("RGB", (60, 48)).save(Path(folder) / "00004.jpg")
    report = pack([Record(folder, 0)], tmp_path / "s")
    assert report.unreadable[0].reason == "frame 3: is 60 x 48 pixels, others 64 x 48"


def test_long_videos_are_read_in_parts(root, records, tmp_path, monkeypatch):
    from ffn.data.store import clip

    monkeypatch.setattr(clip, "CHUNK_BYTES", 5 * 64 * 48 * 3)
    whole = packed(root, records[:1], tmp_path / "parts")
    monkeypatch.undo()
    assert content(whole) == content(packed(root, records[:1], tmp_path / "whole"))


def test_record_that_stands_twice_is_packed_once(root, records, tmp_path):
    twice = [records[0], records[1], Record(records[0].path, 7)]
    report = pack(twice, tmp_path / "s", root=root)
    assert (report.packed, report.clips) == (2, 2)
    assert int(ClipStore(tmp_path / "s").open("videos/0.mkv").row["label"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "png"}, "format is 'png'; expected one of jpeg, raw"),
        ({"quality": 0}, "quality is 0"),
        ({"short_side": 0}, "short_side is 0"),
        ({"shard_mib": 0}, "shard_mib is 0"),
        ({"workers": -1}, "workers is -1"),
        ({"timeout": 0}, "timeout is 0"),
        ({"records": []}, "records is empty"),
    ],
)
def test_refuses(options, message, records, tmp_path):
    with pytest.raises(ValueError, match=message):
        pack(**{"records": records, "folder": tmp_path / "s", **options})
    assert not (tmp_path / "s").exists()


def test_packing_leaves_the_random_state_alone(root, records, tmp_path):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    packed(root, records[:2], tmp_path / "s", workers=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_many_clips_cost_few_bytes(tmp_path):
    """An index of 20,000 clips: bytes per clip, and the time to open it and to find clips."""
    import numpy as np

    from ffn.data.store.layout import CLIP, Index, Manifest, write_clip_index

    keys = [f"videos/class_{i % 400:03d}/clip_{i:07d}_000010_000020.mp4" for i in range(20_000)]
    rows = np.zeros(len(keys), CLIP)
    rows["start"] = rows["end"] = np.nan
    rows["frames"] = np.arange(len(keys))
    file = write_clip_index(tmp_path / "index-00001.bin", rows, keys)
    assert file.bytes / len(keys) < 140
    begun = time.perf_counter()
    index = Index(tmp_path / file.name, Manifest("jpeg", 256, 90, clips=len(keys), index=file))
    assert time.perf_counter() - begun < 0.1
    for n in (0, 7, 19_999):
        assert index.find(keys[n]) == [n]
        assert index.rows[n]["frames"] == n
    assert index.find("videos/other.mp4") == []
