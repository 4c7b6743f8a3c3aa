"""Remote stores: downloaded once, checked, bounded in size, shared by processes."""

from __future__ import annotations

import functools
import http.server
import multiprocessing
import re
import shutil
import threading
from collections import Counter

import pytest
import torch
from store_clips import packed, write_set

from ffn.data import ClipStore, Preprocessing, StoreError, VideoDataset, VideoError, make_loader
from ffn.data.store import cache as cache_module
from ffn.data.store import remote as remote_module

pytest.importorskip("av")
SHARD = 3 * 30 * (64 * 48 * 3 + 20) + 8  # bytes of three clips


@pytest.fixture(scope="module")
def records(root):
    return write_set(root, clips=12, frames=30)  # three to a shard


@pytest.fixture(params=["http", "file"])
def remote(request, folder, monkeypatch):
    """Address of the store, and how often each of its files was fetched."""
    monkeypatch.setattr(remote_module, "PAUSE", 0.01)
    fetched = Counter()
    if request.param == "file":  # represents the other kinds that fsspec opens
        original = remote_module.opened

        def counted(address):
            fetched[address.rsplit("/", 1)[-1]] += 1
            return original(address)

        monkeypatch.setattr(remote_module, "opened", counted)
        yield f"file://{folder}", fetched
        return

    pytest.importorskip("aiohttp")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            fetched[self.path.rsplit("/", 1)[-1]] += 1
            super().do_GET()

        def log_message(self, *given):
            pass

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", fetched
        server.shutdown()


@pytest.fixture
def store(remote, root, tmp_path):
    return ClipStore(remote[0], root=root, cache=tmp_path / "cache")


def shards_in(cache):
    """The shards in a cache, without the hash in their names."""
    return sorted(
        re.sub(r"-[0-9a-f]{12}\.bin", ".bin", path.name)
        for path in cache.glob("shard-*")
        if path.suffix != ".lock"
    )


def test_shards_are_fetched_on_first_use_and_once(store, remote, root, records, expected, tmp_path):
    address, fetched = remote
    assert torch.equal(store.open_record(records[4]).read(range(30)), expected[4])
    assert shards_in(tmp_path / "cache") == ["shard-00001.bin"]
    for record, frames in zip(records, expected, strict=True):
        assert torch.equal(store.open_record(record).read(range(30)), frames)
    again = ClipStore(address, root=root, cache=tmp_path / "cache")
    assert torch.equal(again.open_record(records[0]).read([3])[0], expected[0][3])
    once = {"index-00001.bin": 1, **{f"shard-{n:05d}.bin": 1 for n in range(4)}}
    assert dict(fetched) == {**once, "store.json": 2}
    assert store.verify() == []


def test_cache_is_in_the_home_of_ffn(remote, root, records, tmp_path, monkeypatch):
    monkeypatch.setenv("FFN_HOME", str(tmp_path / "home"))
    ClipStore(remote[0], root=root).open_record(records[0]).read([0])
    found = list((tmp_path / "home" / "stores").glob("*/shard-00000-*.bin"))
    assert len(found) == 1


def test_shard_unused_for_longest_leaves_a_full_cache(remote, root, records, tmp_path):
    cache = tmp_path / "cache"
    store = ClipStore(remote[0], root=root, cache=cache, cache_gib=2.5 * SHARD / 2**30)
    store._shards.files.open_shards = 1  # a process keeps only the last one open
    for clip, left in ((0, [0]), (3, [0, 1]), (0, [0, 1]), (6, [0, 2]), (9, [2, 3]), (3, [1, 3])):
        store.open_record(records[clip]).read([0])
        assert shards_in(cache) == [f"shard-{n:05d}.bin" for n in left]


def test_shards_in_use_stay_and_a_too_small_cache_is_reported(
    remote, root, records, expected, tmp_path
):
    options = {"root": root, "cache": tmp_path / "cache", "cache_gib": 2.5 * SHARD / 2**30}
    one, other = ClipStore(remote[0], **options), ClipStore(remote[0], **options)
    one.open_record(records[0]).read([0])
    one.open_record(records[3]).read([0])
    with pytest.raises(VideoError, match=r"videos/6\.mkv.*shards in use; shard-00002\.bin needs"):
        other.open_record(records[6]).read([0])
    assert shards_in(tmp_path / "cache") == ["shard-00000.bin", "shard-00001.bin"]
    del one
    assert torch.equal(other.open_record(records[6]).read(range(30)), expected[6])


def test_what_a_killed_process_left_is_cleared(remote, root, records, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "shard-00003.bin.part").write_bytes(bytes(2 * SHARD))
    store = ClipStore(remote[0], root=root, cache=cache, cache_gib=1.5 * SHARD / 2**30)
    store.open_record(records[0]).read([0])
    assert shards_in(cache) == ["shard-00000.bin"]


def test_another_file_than_named_is_refused(folder, root, records, tmp_path, monkeypatch):
    monkeypatch.setattr(remote_module, "PAUSE", 0.01)
    copy = shutil.copytree(folder, tmp_path / "copy")
    data = bytearray((copy / "shard-00002.bin").read_bytes())
    data[-1] ^= 1
    (copy / "shard-00002.bin").write_bytes(data)
    (copy / "shard-00001.bin").unlink()
    store = ClipStore(f"file://{copy}", root=root, cache=tmp_path / "cache")
    with pytest.raises(VideoError, match=r"videos/6\.mkv.*differs from its entry in store\.json"):
        store.open_record(records[6]).read([0])
    with pytest.raises(VideoError, match=r"videos/3\.mkv.*(missing|No such file)"):
        store.open_record(records[3]).read([0])
    assert len(store.open_record(records[0]).read([0])) == 1
    assert shards_in(tmp_path / "cache") == ["shard-00000.bin"]

    (copy / "index-00001.bin").write_bytes(b"")
    with pytest.raises(StoreError, match=r"index-00001\.bin differs from .* 0 of"):
        ClipStore(f"file://{copy}", root=root, cache=tmp_path / "another")


def test_store_packed_again_at_the_same_address(root, records, expected, tmp_path):
    options = {"root": root, "cache": tmp_path / "cache"}
    packed(root, records[:6], tmp_path / "s")
    old = ClipStore(f"file://{tmp_path}/s", **options)
    assert torch.equal(old.open_record(records[0]).read([0])[0], expected[0][0])
    shutil.rmtree(tmp_path / "s")
    packed(root, records[::-1], tmp_path / "s")
    new = ClipStore(f"file://{tmp_path}/s", **options)
    assert torch.equal(new.open_record(records[0]).read([5])[0], expected[0][5])
    assert torch.equal(new.open_record(records[11]).read([5])[0], expected[11][5])
    assert torch.equal(old.open_record(records[1]).read([5])[0], expected[1][5])  # still cached


def test_broken_transfer_is_tried_again(remote, root, records, expected, tmp_path, monkeypatch):
    original, failures = cache_module.RemoteFiles._download_once, []

    def flaky(self, file, target):
        if len(failures) < 2:
            target.write(bytes(file.bytes + 5))  # longer than the file
            failures.append(1)
            raise OSError("connection lost")
        original(self, file, target)

    store = ClipStore(remote[0], root=root, cache=tmp_path / "cache")
    monkeypatch.setattr(cache_module.RemoteFiles, "_download_once", flaky)
    assert torch.equal(store.open_record(records[0]).read(range(30)), expected[0])
    (shard,) = (tmp_path / "cache").glob("shard-00000-*.bin")
    assert shard.stat().st_size == store.manifest.shards[0].bytes
    failures[:] = []
    monkeypatch.setattr(remote_module, "ATTEMPTS", 2)
    with pytest.raises(VideoError, match=r"videos/3\.mkv.*connection lost"):
        store.open_record(records[3]).read([0])


def test_address_without_a_store(tmp_path):
    with pytest.raises(StoreError, match=r"nowhere/store\.json cannot be downloaded"):
        ClipStore(f"file://{tmp_path}/nowhere")
    with pytest.raises(StoreError, match="Protocol not known: gopher"):
        ClipStore("gopher://host/store")


def test_unreachable_host(tmp_path):
    pytest.importorskip("aiohttp")
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:9/s/store\.json cannot be downloaded"):
        ClipStore("http://127.0.0.1:9/s", cache=tmp_path)


def read_all(store, records, results):
    sums = [int(store.open_record(record).read(range(30)).sum()) for record in records]
    results.put(sums)


def test_many_processes_share_one_download(store, remote, records, expected):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    all_of_them = [
        context.Process(target=read_all, args=(store, records, results)) for _ in range(4)
    ]
    for process in all_of_them:
        process.start()
    found = [results.get(timeout=60) for _ in all_of_them]
    for process in all_of_them:
        process.join()
    assert found == [[int(frames.sum()) for frames in expected]] * 4
    if "http" in remote[0]:  # the others count in their own memory
        assert all(count == 1 for count in remote[1].values()), remote[1]


def test_workers_load_from_an_address(store, folder, root, records):
    def batches(source, workers):
        preprocessing = Preprocessing(crop=24, resize=32)
        dataset = VideoDataset(
            records, views=(4,), preprocessing=preprocessing, train=True, source=source
        )
        return list(make_loader(dataset, batch_size=4, train=True, workers=workers))

    local = batches(ClipStore(folder, root=root).open_record, 0)
    for one, other in zip(local, batches(store.open_record, 2), strict=True):
        assert torch.equal(one["clips"][4], other["clips"][4])


def test_eviction_under_many_processes(remote, folder, root, records, expected, tmp_path):
    """Four processes, each with one shard open, share room for five; all reads succeed."""
    store = ClipStore(remote[0], root=root, cache=tmp_path / "cache", cache_gib=5.5 * SHARD / 2**30)
    store._shards.files.open_shards = 1
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    orders = [(records * 3)[n:] + (records * 3)[:n] for n in (0, 3, 6, 9)]
    all_of_them = [
        context.Process(target=read_all, args=(store, order, results)) for order in orders
    ]
    for process in all_of_them:
        process.start()
    found = [results.get(timeout=60) for _ in all_of_them]
    for process in all_of_them:
        process.join()
    sums = [int(frames.sum()) for frames in expected] * 3
    assert sorted(found) == sorted(sums[n:] + sums[:n] for n in (0, 3, 6, 9))


def test_a_download_that_ends_while_room_is_made(remote, root, tmp_path, monkeypatch):
    """Its part is renamed between the listing of the cache and the look at its size."""
    store = ClipStore(remote[0], root=root, cache=tmp_path / "cache", cache_gib=5.5 * SHARD / 2**30)
    files = store._shards.files
    files.cache.mkdir(parents=True, exist_ok=True)
    part = files.cache / "shard-x.bin.part"
    part.write_bytes(b"x")
    listed = cache_module.Path.glob

    def glob(path, pattern):
        found = list(listed(path, pattern))
        part.unlink(missing_ok=True)
        return iter(found)

    monkeypatch.setattr(cache_module.Path, "glob", glob)
    files._evict_for(store.manifest.shards[0])
