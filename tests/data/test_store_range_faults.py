"""Range requests to remote stores: wrong answers are refused, tried again, and explained."""

from __future__ import annotations

import json
import shutil
import time
import warnings

import pytest
import torch
from range_server import RangeHandler
from store_clips import in_memory, packed, write_set

from ffn.data import ClipStore, VideoError
from ffn.data.store import ranges, remote

pytest.importorskip("av")
pytest.importorskip("aiohttp")

FRAMES = 30  # of a clip
FRAME = 64 * 48 * 3  # bytes
HEADER = 20 * FRAMES  # bytes
FAR = [0, 10, 20]  # further apart than what is merged


@pytest.fixture(scope="module")
def records(root):
    return write_set(root, clips=6, frames=FRAMES)  # three to a shard


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(remote, "PAUSE", 0.01)


@pytest.fixture
def copy(folder, tmp_path):
    """A store that a test may damage."""
    return shutil.copytree(folder, tmp_path / "copy")


@pytest.fixture
def serve(start_store, folder, root):
    """Start a server of the store or a copy, and open it for range requests."""
    return lambda served=folder, **more: start_store(served, root, **more)


class WholeFiles(RangeHandler):
    """A server without ranges."""

    def answer(self, file, size, part):
        super().answer(file, size, None)


def test_server_without_ranges(serve, records, expected, tmp_path):
    server, store = serve(handler=WholeFiles)
    with pytest.warns(UserWarning, match="does not support range requests .* whole shards"):
        assert torch.equal(store.open_record(records[4]).read(FAR), expected[4][FAR])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it warns once
        for record, frames in zip(records, expected, strict=True):
            assert torch.equal(store.open_record(record).read([3, 4]), frames[[3, 4]])
    shards = [name for _, name, part in server.requests if part is None]
    assert sorted(shards) == [shard.name for shard in store.manifest.shards]
    assert len(server.requests) == len(shards) + 1  # the range that showed it


def test_file_system_without_ranges(folder, root, records, expected, tmp_path, monkeypatch):
    from fsspec.implementations.memory import MemoryFileSystem

    address, original = in_memory(folder), MemoryFileSystem.cat_file

    def opened(cut, cache):
        monkeypatch.setattr(MemoryFileSystem, "cat_file", cut)
        return ClipStore(address, root=root, cache=tmp_path / cache, access="ranges")

    store = opened(lambda self, path, start, end: original(self, path), "one")
    with pytest.warns(UserWarning, match="the whole file; 600 were requested"):
        assert torch.equal(store.open_record(records[4]).read(FAR), expected[4][FAR])
    store = opened(lambda self, path, start, end: original(self, path, start, end - 1), "other")
    with pytest.raises(VideoError, match=r"videos/0\.mkv: 599 of 600 bytes came"):
        store.open_record(records[0]).read([0])


def faulty(*answers):
    """A handler whose first answers to ranges are wrong; `None` stands for a right one."""
    left = iter(answers)

    class Handler(RangeHandler):
        def answer(self, file, size, part):
            wrong = next(left, None) if part else None
            super().answer(file, size, part) if wrong is None else wrong(self, file, size, part)

    return Handler


def status(number):
    return lambda self, file, size, part: self.send_body(number, file, 0, 0)


def part_of(first, length, headers):
    """Part of a file, with the given headers."""

    def answer(self, file, size, part):
        values = {"first": part[0], "last": part[1], "size": size}
        filled = {name: text.format(**values) for name, text in headers.items()}
        self.close_connection = True
        self.send_body(206, file, part[0] + first, part[1] - part[0] + 1 + length, filled)

    return answer


RIGHT = "bytes {first}-{last}/{size}"
FULL = "600"  # bytes of the first request, a header
FAULTS = {
    "unavailable": (status(503), "503"),
    "forbidden": (status(403), "403"),
    "truncated": (part_of(0, -9, {"Content-Range": RIGHT, "Content-Length": FULL}), "Payload"),
    "short": (part_of(0, -9, {"Content-Range": RIGHT}), "591 of 600 bytes came"),
    "unnamed place": (part_of(0, 0, {}), "HTTP 206, no Content-Range"),
    "another place": (
        part_of(-8, 0, {"Content-Range": "bytes 0-599/{size}"}),
        r"bytes 8-607 requested; HTTP 206, bytes 0-599/",
    ),
    "another place, unsaid": (
        part_of(-8, 0, {"Content-Range": RIGHT}),
        "the checksum of its header differs",
    ),
    "another length": (
        part_of(0, 0, {"Content-Range": "bytes {first}-{last}/99"}),
        "the shard has 99 bytes; store.json says",
    ),
    "compressed": (
        part_of(0, 0, {"Content-Range": RIGHT, "Content-Encoding": "gzip"}),
        "Content|gzip",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_answers_are_tried_again_and_never_used(fault, serve, records, expected):
    answer, message = FAULTS[fault]
    _, store = serve(handler=faulty(answer, answer))
    assert torch.equal(store.open_record(records[0]).read(FAR), expected[0][FAR])

    _, store = serve(handler=faulty(answer, answer, answer))
    with pytest.raises(VideoError, match=rf"videos/0\.mkv: .*({message}).*shard-00000\.bin\)"):
        store.open_record(records[0]).read(FAR)
    assert torch.equal(store.open_record(records[0]).read(FAR), expected[0][FAR])


def test_answer_longer_than_said_is_cut(serve, records, expected):
    longer = part_of(0, 9, {"Content-Range": RIGHT})
    server, store = serve(handler=faulty(longer))
    assert torch.equal(store.open_record(records[0]).read(FAR), expected[0][FAR])
    assert len(server.requests) == 4


def test_only_failed_ranges_are_requested_again(serve, records, expected):
    server, store = serve(handler=faulty(None, None, status(503)))
    assert torch.equal(store.open_record(records[0]).read(FAR), expected[0][FAR])
    counts = [server.requests.count(one) for one in set(server.requests)]
    assert sorted(counts) == [1, 1, 1, 2]


def test_silent_server(serve, records, monkeypatch):
    monkeypatch.setattr(remote, "TIMEOUT", 0.1)
    monkeypatch.setattr(remote, "_systems", [])  # they have the other limit
    server, store = serve(handler=faulty(*[lambda *given: time.sleep(0.5)] * 3))
    with pytest.raises(VideoError, match=r"videos/0\.mkv: .*[Tt]imeout"):
        store.open_record(records[0]).read([0])
    assert len(server.requests) == 3


def test_damaged_frame(serve, copy, records, expected):
    data = bytearray((copy / "shard-00000.bin").read_bytes())
    data[8 + HEADER + 5 * FRAME] ^= 1  # in the first clip
    (copy / "shard-00000.bin").write_bytes(data)
    server, store = serve(copy, check=False)
    frames = [4, 5, 6]
    with pytest.raises(VideoError, match=r"videos/0\.mkv, frame 5: the checksum differs \("):
        store.open_record(records[0]).read(frames)
    assert server.requests[-1] == ("GET", "store.json", None)  # whether it was replaced
    assert torch.equal(store.open_record(records[0]).read([4, 6]), expected[0][[4, 6]])
    (damaged,) = store.verify()
    assert damaged.frame == 5


def replaced(copy, root, records):
    """Pack other clips at the same place; those of an open store are not there any more."""
    shutil.rmtree(copy)
    packed(root, records[::-1], copy)


def test_store_replaced_after_opening(serve, copy, root, records):
    _, store = serve(copy)
    video = store.open_record(records[0])
    replaced(copy, root, records)
    changed = r"store\.json has changed since it was opened; open the store again"
    with pytest.raises(VideoError, match=rf"the checksum of its header differs; {changed}"):
        video.read([0])
    (copy / "shard-00000.bin").unlink()
    with pytest.raises(VideoError, match=rf"videos/0\.mkv: the shard is missing; {changed}"):
        video.read([0])
    (copy / "shard-00000.bin").write_bytes(bytes(1000))
    with pytest.raises(VideoError, match=rf"the shard has 1,000 bytes; .*; {changed}"):
        video.read([0])
    (copy / "shard-00000.bin").write_bytes(b"")
    with pytest.raises(VideoError, match=rf"the shard has 0 bytes; .*; {changed}"):
        video.read([0])


def test_frame_replaced_after_the_header_was_read(serve, copy, root, records, expected):
    _, store = serve(copy)
    assert torch.equal(store.open_record(records[0]).read([0]), expected[0][[0]])
    replaced(copy, root, records)
    with pytest.raises(VideoError, match=r"frame 7: the checksum differs; store\.json has changed"):
        store.open_record(records[0]).read([7])


def test_missing_shard_and_lost_server(serve, copy, records):
    _, store = serve(copy)
    (copy / "shard-00000.bin").unlink()
    with pytest.raises(VideoError, match=r"videos/0\.mkv: the shard is missing \("):
        store.open_record(records[0]).read([0])
    store._shards.files.name = "http://127.0.0.1:9"
    with pytest.raises(VideoError, match=r"videos/3\.mkv: .*connect"):
        store.open_record(records[3]).read([0])


def test_hostile_length_is_refused(serve, copy, records, monkeypatch):
    monkeypatch.setattr(ranges, "SPAN_BYTES", HEADER + 100)
    _, store = serve(copy)
    with pytest.raises(VideoError, match=r"9,216 bytes are one part; at most 700 are read"):
        store.open_record(records[0]).read([0])


def test_manifest_with_wrong_lengths(serve, copy, records):
    """A server whose manifest belongs to other shards."""
    text = json.loads((copy / "store.json").read_text())
    text["shards"][0]["bytes"] += 5
    (copy / "store.json").write_text(json.dumps(text))
    _, store = serve(copy)
    with pytest.raises(VideoError, match=r"the shard has [\d,]+ bytes; store\.json says"):
        store.open_record(records[0]).read([0])
