"""Remote stores: downloaded once, checked, shared by processes."""

from __future__ import annotations

import functools
import http.server
import multiprocessing
import shutil
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from ffn.data import ClipStore, Preprocessing, StoreError, VideoDataset, make_loader, pack
from ffn.data.loader import watching
from ffn.data.store import remote

pytest.importorskip("av")
SLOW = 0.2  # seconds


@pytest.fixture(scope="module")
def folder(root, records, tmp_path_factory):
    """A store of three shards."""
    folder = tmp_path_factory.mktemp("packed")
    for number in (3, 6, 10):
        pack(records[:number], folder, root=root)
    return folder


@pytest.fixture(scope="module")
def expected(folder, root, records):
    return [ClipStore(folder, root=root).open_record(record).read(range(12)) for record in records]


class Handler(http.server.SimpleHTTPRequestHandler):
    """Sends files or ranges of them; the first answer to each request has the server's fault."""

    def do_GET(self):
        name, span = self.path.rsplit("/", 1)[-1], self.headers.get("Range")
        self.server.fetched[name, span] += 1
        first = self.server.fetched[name, span] == 1 and name != "store.json"
        fault = self.server.fault if first else None
        try:
            data = Path(self.translate_path(self.path)).read_bytes()
        except OSError:
            return self.send_error(404)
        if fault == "busy":
            return self.send_error(503)
        if fault == "slow":
            time.sleep(3 * SLOW)
        if span and self.server.has_ranges:
            start, end = span.removeprefix("bytes=").split("-")
            data = data[int(start) : int(end) + 1]
        if fault == "short":
            data = data[:-1]
        if fault == "damaged":
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.send_response(206 if span and self.server.has_ranges else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if fault in ("cut", "stuck") else data)
        if fault == "stuck":
            self.wfile.flush()
            time.sleep(60)

    def log_message(self, *given):
        pass


@pytest.fixture(scope="module")
def running(folder):
    pytest.importorskip("aiohttp")
    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.handle_error = lambda *given: None  # the client has closed the connection
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def server(running, monkeypatch):
    """Its address; `fetched` counts the requests by file and range."""
    running.fetched, running.fault, running.has_ranges = Counter(), None, True
    running.address = f"http://127.0.0.1:{running.server_port}"
    monkeypatch.setattr(remote, "WAITS", (0, 0))
    return running


def shards_in(cache):
    return sorted(path.name[17:] for path in cache.glob("*-shard-*.bin"))


def test_shards_are_fetched_on_first_use_and_once(server, root, records, expected, tmp_path):
    store = ClipStore(f"{server.address}/", root=root, cache=tmp_path / "cache")
    assert torch.equal(store.open_record(records[4]).read(range(12)), expected[4])
    assert shards_in(tmp_path / "cache") == ["shard-00001.bin"]
    for record, frames in zip(records, expected, strict=True):
        assert torch.equal(store.open_record(record).read(range(12)), frames)
    again = ClipStore(server.address, root=root, cache=tmp_path / "cache")
    assert again.verify() == []
    once = {again.manifest.index, *(f"shard-0000{i}.bin" for i in range(3))}
    assert server.fetched == {("store.json", None): 2, **{(name, None): 1 for name in once}}


def samples(store, records):
    """All samples of a training epoch, from two workers."""
    sizes = Preprocessing(crop=32, resize=40)
    source = {"source": store.open_record}
    data = VideoDataset(records, views=(2, 4), preprocessing=sizes, train=True, **source)
    return [
        (batch["index"], batch["label"], *batch["clips"].values())
        for batch in make_loader(data, batch_size=2, workers=2, train=True)
    ]


@pytest.fixture(scope="module")
def local_samples(folder, root, records):
    return samples(ClipStore(folder, root=root), records)


@pytest.mark.parametrize("fault", [None, "cut", "busy", "slow", "short", "damaged"])
def test_samples_are_those_of_a_local_store(
    fault, server, folder, root, records, local_samples, tmp_path, monkeypatch
):
    """The cache holds one of three shards; the frames of the others come by ranges."""
    monkeypatch.setattr(remote, "TIMEOUT", SLOW if fault == "slow" else 60)
    server.fault = fault
    limit = (folder / "shard-00000.bin").stat().st_size
    options = {"root": root, "cache": tmp_path / "cache"}
    store = ClipStore(server.address, cache_bytes=limit, **options)
    found = samples(store, records)
    for one, other in zip(found, local_samples, strict=True):
        assert all(map(torch.equal, one, other))
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [
        ".bin",
        ".db",
        ".lock",
        ".lock",
    ]
    whole = {name for name, span in server.fetched if span is None}
    assert whole == {"store.json", store.manifest.index, "shard-00000.bin"}
    least = 1 + (fault is not None)
    del server.fetched["store.json", None], server.fetched["store.json", "bytes=0-0"]
    assert min(server.fetched.values()) == least
    ClipStore(server.address, cache_bytes=limit - 1, **options)
    assert shards_in(tmp_path / "cache") == []


def test_any_address_that_fsspec_opens(folder, root, records, expected, tmp_path, monkeypatch):
    import fsspec

    monkeypatch.setenv("FFN_HOME", str(tmp_path / "home"))
    for path in folder.iterdir():
        fsspec.filesystem("memory").pipe_file(f"/set/{path.name}", path.read_bytes())
    for address in ("memory://set", f"file://{folder}"):
        store = ClipStore(address, root=root)
        assert torch.equal(store.open_record(records[0]).read(range(12)), expected[0])
    assert len([*(tmp_path / "home/stores").glob("*/*-shard-00000.bin")]) == 2


def test_another_file_than_named_is_refused(folder, root, records, tmp_path, monkeypatch):
    """A shard that differs, is cut or is missing; the next attempt downloads it again."""
    monkeypatch.setattr(remote, "WAITS", ())
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    store = ClipStore(f"file://{copy}", root=root, cache=tmp_path / "cache")
    data = (copy / "shard-00000.bin").read_bytes()
    for wrong in (b"x" + data[1:], data[:-1], None):
        if wrong is None:
            (copy / "shard-00000.bin").unlink()
        else:
            (copy / "shard-00000.bin").write_bytes(wrong)
        with pytest.raises(StoreError, match=r"shard-00000\.bin"):
            store.open_record(records[0]).read([0])
        assert shards_in(tmp_path / "cache") == []
    (copy / "shard-00000.bin").write_bytes(data)
    assert len(store.open_record(records[0]).read([0])) == 1
    (copy / store.manifest.index).unlink()
    with pytest.raises(StoreError):
        ClipStore(f"file://{copy}", cache=tmp_path / "other")


def test_a_server_that_stays_broken_is_an_error(server, root, records, tmp_path, monkeypatch):
    """Also with on_error=skip: the videos are not at fault."""
    store = ClipStore(server.address, root=root, cache=tmp_path, cache_bytes=0)
    monkeypatch.setattr(remote, "WAITS", ())
    server.fault = "busy"
    options = {"views": (2,), "preprocessing": Preprocessing(), "on_error": "skip"}
    data = VideoDataset(records, source=store.open_record, **options)
    with pytest.raises(StoreError, match="503") as caught, watching():
        next(iter(make_loader(data, batch_size=1, workers=1)))
    assert str(caught.value).startswith(f"{server.address}/shard-00000.bin cannot")
    server.has_ranges = False
    with pytest.raises(StoreError, match="ranges"):
        ClipStore(server.address, cache=tmp_path, cache_bytes=0)
    server.fault = None
    assert len(ClipStore(server.address, cache=tmp_path, cache_bytes=1 << 20).open("videos/9.mkv"))


def read_sum(store, results):
    results.put(int(store.open("videos/0.mkv").read([0]).sum()))


def test_a_killed_process_leaves_no_part(server, expected, tmp_path):
    store = ClipStore(server.address, cache=tmp_path)
    server.fault = "stuck"
    worker = multiprocessing.get_context("fork").Process(target=store.verify)
    worker.start()
    while not server.fetched["shard-00000.bin", None]:
        time.sleep(0.01)
    worker.kill()
    worker.join()
    assert [*tmp_path.glob(".*.part")]
    assert torch.equal(store.open("videos/0.mkv").read(range(12)), expected[0])
    assert [path.name[17:] for path in tmp_path.glob("*.bin")] == ["shard-00000.bin"]
    assert not [*tmp_path.glob(".*.part")]


def test_address_without_a_store(server, tmp_path, monkeypatch):
    for address in (
        f"{server.address}/none",
        f"file://{tmp_path}",
        "http://127.0.0.1:9/",
        "none://x",
    ):
        with pytest.raises(StoreError):
            ClipStore(address, cache=tmp_path / "cache")
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(StoreError, match="frame-flexible"):  # names the missing extra
        ClipStore(server.address, cache=tmp_path / "cache")


@pytest.mark.slow
def test_processes_share_one_download(server, expected, tmp_path):
    """Forked after the parent has downloaded, which leaves connections and threads in it."""
    store = ClipStore(server.address, cache=tmp_path / "cache")
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=read_sum, args=(store, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=60) for _ in workers]
    assert found == [int(expected[0][0].sum())] * 4
    assert server.fetched["shard-00000.bin", None] == 1
