"""Remote stores: downloaded once, checked, shared by processes."""

from __future__ import annotations

import functools
import http.server
import multiprocessing
import shutil
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch

from ffn.data import ClipStore, StoreError, VideoError, pack

pytest.importorskip("av")


@pytest.fixture(scope="module")
def folder(root, records, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    pack(records[:3], folder, root=root)
    pack(records, folder, root=root)  # two shards
    return folder


@pytest.fixture(scope="module")
def expected(folder, root, records):
    return [ClipStore(folder, root=root).open_record(record).read(range(12)) for record in records]


@pytest.fixture(scope="module")
def server(folder):
    """Address of the store, and how often each of its files was fetched."""
    pytest.importorskip("aiohttp")
    fetched = Counter()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            fetched[self.path.rsplit("/", 1)[-1]] += 1
            super().do_GET()

        def log_message(self, *given):
            pass

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}", fetched
        running.shutdown()


@pytest.fixture
def remote(server):
    server[1].clear()
    return server


def shards_in(cache):
    return sorted(path.name[17:] for path in cache.glob("*-shard-*.bin"))


def test_shards_are_fetched_on_first_use_and_once(remote, root, records, expected, tmp_path):
    address, fetched = remote
    store = ClipStore(f"{address}/", root=root, cache=tmp_path / "cache")
    assert torch.equal(store.open_record(records[4]).read(range(12)), expected[4])
    assert shards_in(tmp_path / "cache") == ["shard-00001.bin"]
    for record, frames in zip(records, expected, strict=True):
        assert torch.equal(store.open_record(record).read(range(12)), frames)
    again = ClipStore(address, root=root, cache=tmp_path / "cache")
    assert again.verify() == []
    once = {again.manifest.index: 1, "shard-00000.bin": 1, "shard-00001.bin": 1}
    assert dict(fetched) == {**once, "store.json": 2}


def test_any_address_that_fsspec_opens(folder, root, records, expected, tmp_path, monkeypatch):
    import fsspec

    monkeypatch.setenv("FFN_HOME", str(tmp_path / "home"))
    for path in folder.iterdir():
        fsspec.filesystem("memory").pipe_file(f"/set/{path.name}", path.read_bytes())
    for address in ("memory://set", f"file://{folder}"):
        store = ClipStore(address, root=root)
        assert torch.equal(store.open_record(records[0]).read(range(12)), expected[0])
    assert len([*(tmp_path / "home/stores").glob("*/*-shard-00000.bin")]) == 2


def test_another_file_than_named_is_refused(folder, root, records, tmp_path):
    """A shard that differs, is cut or is missing; the next attempt downloads it again."""
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    store = ClipStore(f"file://{copy}", root=root, cache=tmp_path / "cache")
    data = (copy / "shard-00000.bin").read_bytes()
    for wrong in (b"x" + data[1:], data[:-1], None):
        if wrong is None:
            (copy / "shard-00000.bin").unlink()
        else:
            (copy / "shard-00000.bin").write_bytes(wrong)
        with pytest.raises(VideoError, match=r"shard-00000\.bin"):
            store.open_record(records[0]).read([0])
        assert shards_in(tmp_path / "cache") == []
    (copy / "shard-00000.bin").write_bytes(data)
    assert len(store.open_record(records[0]).read([0])) == 1
    (copy / store.manifest.index).unlink()
    with pytest.raises(StoreError):
        ClipStore(f"file://{copy}", cache=tmp_path / "other")


def test_address_without_a_store(remote, tmp_path, monkeypatch):
    for address in (f"{remote[0]}/none", f"file://{tmp_path}", "http://127.0.0.1:9/", "none://x"):
        with pytest.raises(StoreError):
            ClipStore(address, cache=tmp_path / "cache")
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(StoreError, match="frame-flexible"):  # names the missing extra
        ClipStore(remote[0], cache=tmp_path / "cache")


def read_sum(store, results):
    results.put(int(store.open("videos/0.mkv").read([0]).sum()))


@pytest.mark.slow
def test_processes_share_one_download(remote, expected, tmp_path):
    """Forked after the parent has downloaded, which leaves connections and threads in it."""
    address, fetched = remote
    store = ClipStore(address, cache=tmp_path / "cache")
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=read_sum, args=(store, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=60) for _ in workers]
    assert found == [int(expected[0][0].sum())] * 4
    assert fetched["shard-00000.bin"] == 1
