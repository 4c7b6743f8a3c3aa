"""Range requests to remote stores: which bytes come, and in which processes and threads."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from range_server import RangeHandler
from store_clips import in_memory, packed, write_set

from ffn.data import ClipStore, Preprocessing, VideoDataset, make_loader
from ffn.data.store import ranges, remote
from ffn.data.store.shards import Span

pytest.importorskip("av")
pytest.importorskip("aiohttp")

FRAMES = 30  # of a clip
FRAME = 64 * 48 * 3  # bytes
HEADER = 20 * FRAMES  # bytes
FAR = [0, 10, 20]  # further apart than what is merged
NEAR = [3, 4, 6]


@pytest.fixture(scope="module")
def records(root):
    return write_set(root, clips=8, frames=FRAMES)  # three to a shard


@pytest.fixture
def serve(start_store, folder, root):
    """Start a server, and open its store for range requests."""
    return lambda served=folder, **more: start_store(served, root, **more)


def place(store, record):
    """Shard and offset of the clip of a record."""
    row = store.open_record(record).row
    return int(row["shard"]), int(row["offset"])


def test_few_clips_come_by_few_requests(serve, records, expected, tmp_path):
    server, store = serve()
    for clip in (0, 4, 7):
        assert torch.equal(store.open_record(records[clip]).read(FAR), expected[clip][FAR])
        assert torch.equal(store.open_record(records[clip]).read(NEAR), expected[clip][NEAR])

    wanted = []  # the header once, each distant frame alone, and near frames together
    for clip in (0, 4, 7):
        shard, start = place(store, records[clip])
        first = start + HEADER
        spans = [(start, HEADER), *((first + i * FRAME, FRAME) for i in FAR)]
        spans.append((first + NEAR[0] * FRAME, (NEAR[-1] - NEAR[0] + 1) * FRAME))
        name = f"shard-{shard:05d}.bin"
        wanted += [("GET", name, (start, start + size - 1)) for start, size in spans]
    assert sorted(server.requests) == sorted(wanted)
    assert server.sent == 3 * (HEADER + 3 * FRAME + 4 * FRAME)
    assert server.sent < 1.3 * 3 * 6 * FRAME
    assert {path.suffix for path in (tmp_path / "cache").glob("shard-*")} == set()


def test_opening_needs_the_manifest_and_the_index(serve, root, tmp_path):
    server, _ = serve()
    ClipStore(server.address, root=root, cache=tmp_path / "cache", access="ranges")
    assert server.requests == [("GET", "store.json", None)]  # the index is cached
    ClipStore(server.address, root=root, cache=tmp_path / "new", access="ranges")
    assert [name for _, name, _ in server.requests[1:]] == ["store.json", "index-00001.bin"]


class Redirecting(RangeHandler):
    """An object store that passes requests on to another address."""

    def do_GET(self):
        if self.path.startswith("/moved/"):
            self.path = self.path.removeprefix("/moved")
            super().do_GET()
            return
        self.send_response(307)
        self.send_header("Location", f"/moved{self.path}")
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_redirected_ranges(serve, records, expected):
    server, store = serve(handler=Redirecting)
    assert torch.equal(store.open_record(records[4]).read(FAR), expected[4][FAR])
    assert all(part for _, _, part in server.requests)


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_any_address_that_fsspec_opens(kind, folder, root, records, expected, tmp_path):
    address = in_memory(folder) if kind == "memory" else f"file://{folder}"
    store = ClipStore(address, root=root, cache=tmp_path / "cache", access="ranges")
    for record, frames in zip(records, expected, strict=True):
        assert torch.equal(store.open_record(record).read([29, 0, 7, 7]), frames[[29, 0, 7, 7]])
    assert store.verify() == []
    assert not list((tmp_path / "cache").glob("shard-*"))


def test_jpeg_and_times(root, records, tmp_path, serve):
    local = ClipStore(packed(root, records[:2], tmp_path / "jpeg", format="jpeg"), root=root)
    _, store = serve(tmp_path / "jpeg")
    for record in records[:2]:
        one, other = local.open_record(record), store.open_record(record)
        assert torch.equal(one.read(FAR), other.read(FAR))
        assert (one.times == other.times).all()
        assert one.between(0.2, 0.5) == other.between(0.2, 0.5)


def test_shard_in_the_cache_is_used(serve, root, records, expected, tmp_path):
    server, store = serve()
    whole = ClipStore(server.address, root=root, cache=tmp_path / "cache")
    whole.open_record(records[0]).read([0])
    server.forget()
    assert torch.equal(store.open_record(records[1]).read(FAR), expected[1][FAR])
    assert server.requests == []
    assert torch.equal(store.open_record(records[3]).read(NEAR), expected[3][NEAR])
    assert len(server.requests) == 2


def naive_requests(spans, gap, most):
    """Which spans share a request, from the definition: pairs of neighbours that are merged."""
    start, labels = None, []
    for n, span in enumerate(spans):
        near = n and span.offset - spans[n - 1].offset - spans[n - 1].size <= gap
        if not near or span.offset + span.size - start > most:
            start = span.offset
            labels.append([])
        labels[-1].append(n)
    return labels


def test_spans_are_merged_as_defined(monkeypatch):
    monkeypatch.setattr(ranges, "REQUEST_BYTES", 60)
    monkeypatch.setattr(ranges, "GROUP_BYTES", 100)
    monkeypatch.setattr(ranges, "CONCURRENT", 3)
    draw = random.Random(0)
    for _ in range(300):
        spans, at = [], 0
        for _ in range(draw.randint(1, 20)):
            at += draw.choice([0, 1, 9, 10, 11, 40])
            spans.append(Span(at, draw.choice([1, 5, 30, 80]), 0))
            at = spans[-1].end
        merged = ranges._merged(spans, 10)
        shown = [[spans.index(span) for span in request] for request in merged]
        assert shown == naive_requests(spans, 10, 60)

        groups = list(ranges._groups(spans, 10))
        assert list(itertools.chain(*groups)) == spans
        for group in groups:
            requests = ranges._merged(group, 10)
            sizes = [request[-1].end - request[0].offset for request in requests]
            assert len(sizes) <= 3
            assert len(sizes) == 1 or sum(sizes) <= 100


def test_long_clips_are_fetched_in_groups(serve, records, expected, monkeypatch):
    monkeypatch.setattr(ranges, "REQUEST_BYTES", 2 * FRAME)
    monkeypatch.setattr(ranges, "GROUP_BYTES", 6 * FRAME)
    groups, original = [], remote.fetch_ranges

    def kept(address, places, size):
        groups.append([end - start for start, end in places])
        return original(address, places, size)

    monkeypatch.setattr(remote, "fetch_ranges", kept)
    _, store = serve()
    assert torch.equal(store.open_record(records[0]).read(range(FRAMES)), expected[0])
    assert groups == [[HEADER], *[[2 * FRAME] * 3] * 5]


def test_many_distant_frames_are_planned_quickly():
    def seconds(number):
        spans = [Span(i << 20, 1000, 0) for i in range(number)]
        start = time.process_time()
        assert sum(map(len, ranges._groups(spans, ranges.GAP))) == number
        return time.process_time() - start

    few, many = (min(seconds(number) for _ in range(3)) for number in (2_000, 16_000))
    assert many < 24 * few  # 8 times the frames; 64 times if every pair was looked at


def test_long_headers_are_not_kept(serve, records, monkeypatch):
    server, store = serve()
    monkeypatch.setattr(ranges, "HEADERS", 2)
    for clip in (0, 1, 2, 1, 2, 0):
        store.open_record(records[clip]).between(0, 1)
    assert len(server.requests) == 4  # the oldest of three was dropped
    monkeypatch.setattr(ranges, "HEADER_BYTES", HEADER - 1)
    for _ in range(2):
        store.open_record(records[5]).between(0, 1)
    assert len(server.requests) == 6


def test_access_is_checked(folder, root, records):
    with pytest.raises(ValueError, match="access is 'parts'; expected one of shards, ranges"):
        ClipStore(folder, access="parts")
    local = ClipStore(folder, root=root, access="ranges")  # a folder is read as always
    assert local.open_record(records[0]).read([0]).shape == (1, 48, 64, 3)


def test_share(folder, root, records):
    store = ClipStore(folder, root=root)
    sizes = [shard.bytes for shard in store.manifest.shards]
    clip = HEADER + FRAMES * FRAME
    assert store.share(records[:1]) == pytest.approx(clip / sizes[0])
    assert store.share([records[0], records[0]]) == pytest.approx(clip / sizes[0])
    assert store.share([records[0], records[7]]) == pytest.approx(2 * clip / (sizes[0] + sizes[2]))
    assert 0.99 < store.share(records) <= 1
    assert store.share([]) == 0


def batches(records, source, workers):
    preprocessing = Preprocessing(crop=24, resize=32)
    dataset = VideoDataset(
        records, views=(4,), preprocessing=preprocessing, train=True, source=source
    )
    return list(make_loader(dataset, batch_size=4, train=True, workers=workers))


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_loader_workers(start, serve, folder, root, records, monkeypatch):
    monkeypatch.setattr("ffn.data.loader.worker_start_method", lambda: start)
    server, store = serve()
    store.open_record(records[0]).read([0])  # this process has a connection
    local = batches(records, ClipStore(folder, root=root).open_record, 0)
    found = batches(records, store.open_record, 2)
    for one, other in zip(local, found, strict=True):
        assert torch.equal(one["clips"][4], other["clips"][4])
    assert {part is None for _, _, part in server.requests} == {False}


def read_some(store, records, results):
    results.put([int(store.open_record(record).read(FAR).sum()) for record in records])


@pytest.mark.parametrize("access", ["ranges", "shards"])
def test_connections_of_the_parent_outlive_its_children(
    access, serve, root, records, expected, tmp_path
):
    """A child that closes them would stall the next request of the parent for a minute."""
    server, store = serve(access=access)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    for _ in range(3):
        store.open_record(records[0]).read([0])
        child = context.Process(target=read_some, args=(store, records, results))
        child.start()
        assert results.get(timeout=20) == [int(frames[FAR].sum()) for frames in expected]
        child.join()
        start = time.perf_counter()
        store = ClipStore(server.address, root=root, cache=tmp_path / "cache", access=access)
        store.open_record(records[5]).read([3])
        assert time.perf_counter() - start < 10


def test_threads(serve, records, expected):
    _, store = serve()

    def read(clip):
        frames = [clip, 29 - clip, 3 + clip]
        return torch.equal(store.open_record(records[clip]).read(frames), expected[clip][frames])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, [*range(8)] * 5))


@pytest.mark.parametrize("access", ["ranges", "shards"])
def test_threads_that_close_shards_of_each_other(access, serve, root, records, expected, tmp_path):
    server, store = serve()
    whole = ClipStore(server.address, root=root, cache=tmp_path / "cache")
    whole.verify()
    store.access = access
    store._shards.files.open_shards = 1

    def read(clip):
        return torch.equal(store.open_record(records[clip]).read(NEAR), expected[clip][NEAR])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, [*range(8)] * 25))


def test_pickle(serve, records, expected):
    _, store = serve()
    again = pickle.loads(pickle.dumps(store))
    assert again.access == "ranges"
    assert torch.equal(again.open_record(records[2]).read(FAR), expected[2][FAR])
