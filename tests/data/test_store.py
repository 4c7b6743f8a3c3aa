"""A clip store returns the frames of `open_video`, as JPEG, and names damaged clips."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.io import ImageReadMode, decode_jpeg, encode_jpeg
from torchvision.transforms.v2 import functional as F

from ffn.data import ClipStore, Record, StoreError, VideoError, open_video, pack
from ffn.data.store import video as video_module

pytest.importorskip("av")


@pytest.fixture(scope="module")
def folder(root, records, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    pack(records, folder, root=root, shard_mib=1)
    return folder


@pytest.fixture
def copy(folder, tmp_path):
    """A store to damage."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def every(video):
    return video.read(range(len(video)))


def as_jpeg(frames, quality=90):
    """Frames (N, H, W, 3) after encoding and decoding with torchvision."""
    encoded = [encode_jpeg(x.permute(2, 0, 1).contiguous(), quality) for x in frames]
    return torch.stack([decode_jpeg(x, ImageReadMode.RGB).permute(1, 2, 0) for x in encoded])


def test_frames_are_those_of_the_video_resized_and_encoded(folder, root, records, tmp_path):
    store = ClipStore(folder, root=root)
    for record in records:
        frames = as_jpeg(every(open_video(record.path)))
        assert torch.equal(every(store.open_record(record)), frames)
        assert torch.equal(every(pickle.loads(pickle.dumps(store)).open_record(record)), frames)
    assert store.verify() == []
    with pytest.raises(VideoError, match="is not in the store"):
        store.open_record(Record(str(root / "videos/new.mkv"), 10))

    pack(records[:1], tmp_path / "s", root=root, short_side=32, quality=50)
    x = every(open_video(records[0].path)).permute(0, 3, 1, 2)
    x = F.resize(x, [32], antialias=True)
    assert x.shape == (12, 3, 32, 42)  # the longer side is 64 * 32 / 48, rounded down
    found = every(ClipStore(tmp_path / "s", root=root).open_record(records[0]))
    assert torch.equal(found, as_jpeg(x.permute(0, 2, 3, 1), quality=50))


def test_times_of_a_variable_rate_stay(tmp_path):
    import av

    ticks = [0, 40, 45, 300, 310, 900]  # ms
    path = tmp_path / "vfr.mkv"
    with av.open(str(path), "w") as output:
        video = output.add_stream("ffv1", rate=1000)
        video.width, video.height, video.pix_fmt = 32, 32, "bgr0"
        for tick in ticks:
            frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
            frame.pts = tick
            output.mux(video.encode(frame))
        output.mux(video.encode())
    pack([Record(str(path), 0)], tmp_path / "s")
    clip, original = ClipStore(tmp_path / "s").open(str(path)), open_video(path)
    assert np.allclose(clip.times, np.array(ticks) / 1000, atol=1e-3)
    for start, end in ((0.04, 0.3), (0.045, None), (None, 0.301), (0.29, 0.95)):
        assert clip.between(start, end) == original.between(start, end)
    with pytest.raises(VideoError):
        clip.between(0.05, 0.29)


def test_time_ranges_are_clips_of_their_own(write_video, numbers, tmp_path):
    path = write_video(tmp_path / "a.mp4", 30)
    parts = [Record(path, 0, start=0.2, end=0.4), Record(path, 1, start=0.4)]  # 25 per second
    report = pack(parts, tmp_path / "parts")
    assert (report.packed, report.manifest.frames) == (2, 5 + 20)
    store = ClipStore(tmp_path / "parts")
    for part, expected in zip(parts, (range(5, 10), range(10, 30)), strict=True):
        clip = store.open_record(part)
        assert numbers(clip.read(clip.between(part.start, part.end))) == list(expected)
    with pytest.raises(VideoError, match="is not in the store"):
        store.open(path, start=0.1, end=0.5)

    pack([Record(path, 0)], tmp_path / "whole")
    store = ClipStore(tmp_path / "whole")
    clip = store.open_record(parts[0])
    assert numbers(clip.read(clip.between(0.2, 0.4))) == list(range(5, 10))


def test_folders_of_frames(write_folder, numbers, tmp_path):
    folder = write_folder(tmp_path / "frames", 10, pattern="img_{:03d}.png")
    pack([Record(folder, 0, frames=8)], tmp_path / "s", pattern="img_{:03d}.png")
    store = ClipStore(tmp_path / "s")
    clip = store.open_record(Record(folder, 0, frames=8))
    assert numbers(every(clip)) == list(range(8))
    assert clip.times is None
    with pytest.raises(VideoError, match="its frames have no times"):
        clip.between(0, 1)
    with pytest.raises(VideoError, match="the list has 10 frames"):
        store.open_record(Record(folder, 0, frames=10))


def test_a_set_may_move_and_names_need_not_be_utf8(folder, records, tmp_path):
    moved = str(tmp_path / "videos/3.mkv")
    assert len(ClipStore(folder, root=tmp_path).open_record(Record(moved, 3))) == 12
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 \xc3\xa9 10%.mkv")
    os.link(records[0].path, path)
    pack([Record(path, 0)], tmp_path / "s", root=tmp_path)
    store = ClipStore(tmp_path / "s", root=tmp_path)
    assert len(store.open_record(Record(path, 0))) == 12
    assert store._clips("")[0].key == b"caf\xe9 \xc3\xa9 10%.mkv"


def corrupt(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_flipped_bytes_name_clip_and_frame(copy, root, records):
    clip = ClipStore(copy).open("videos/1.mkv")
    first = clip.clip.offset + 12 * 20 + int(clip._header["end"][4])
    corrupt(copy / "shard-00000.bin", first + 10)  # in its frame 5
    corrupt(copy / "shard-00000.bin", ClipStore(copy).open("videos/2.mkv").clip.offset + 3)
    store = ClipStore(copy, root=root)
    with pytest.raises(VideoError, match="a checksum differs") as raised:
        every(store.open("videos/1.mkv"))
    assert raised.value.frame == 5
    good = [i for i in range(12) if i != 5]
    expected = as_jpeg(open_video(records[1].path).read(good))
    assert torch.equal(store.open("videos/1.mkv").read(good), expected)
    with pytest.raises(VideoError) as raised:
        store.open("videos/2.mkv").read([0])
    assert raised.value.frame is None  # its header
    assert [error.path for error in store.verify()] == ["videos/1.mkv", "videos/2.mkv"]


def test_cut_and_missing_shards_name_their_clips(copy):
    store = ClipStore(copy)
    with (copy / "shard-00000.bin").open("r+b") as file:
        file.truncate(store.open("videos/5.mkv").clip.offset + 1000)
    assert [error.path for error in store.verify()] == [f"videos/{i}.mkv" for i in range(5, 10)]
    assert len(every(store.open("videos/4.mkv"))) == 12
    (copy / "shard-00000.bin").unlink()
    with pytest.raises(VideoError, match="the shard is missing"):
        store.open("videos/4.mkv").read([0])


def test_impossible_rows_of_the_index_are_refused(copy):
    store = ClipStore(copy)
    changes = "frames = 1000000000", "bytes = 1 << 62", "offset = -8", "shard = 7"
    for row, change in enumerate(changes, 2):
        with closing(sqlite3.connect(store._index)) as database, database:
            database.execute(f"UPDATE clips SET {change} WHERE rowid = {row}")
        with pytest.raises(VideoError):
            store.open(f"videos/{row - 1}.mkv")
    assert [error.path for error in store.verify()] == [f"videos/{n}.mkv" for n in range(1, 5)]


def test_a_jpeg_of_another_size_is_not_decoded(folder):
    """Its pixels may need more memory than there is."""
    clip = ClipStore(folder).open("videos/0.mkv")
    data = bytearray(encode_jpeg(torch.zeros(3, 48, 64, dtype=torch.uint8)).numpy().tobytes())
    assert clip._decode(0, bytes(data)).shape == (48, 64, 3)
    size = data.index(b"\xff\xc0") + 5  # height and width in the header
    for height, width in ((64, 48), (65_500, 65_500)):
        data[size : size + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
        with pytest.raises(VideoError):
            clip._decode(0, bytes(data))
    with pytest.raises(VideoError, match="not a JPEG"):
        clip._decode(0, b"something else")


def test_damaged_index_and_manifest_are_refused(copy, tmp_path):
    (index,) = copy.glob("index-*.db")
    manifest = json.loads((copy / "store.json").read_text())
    corrupt(index, 50)
    with pytest.raises(StoreError, match="is damaged"):
        ClipStore(copy)
    index.unlink()
    with pytest.raises(StoreError):
        ClipStore(copy)
    wrong = ({"version": 9}, {"kind": "other"}, {"sha256": "../../etc/passwd"}, {"clips_": 1})
    for text in ("{", "[1]", *(json.dumps(manifest | change) for change in wrong)):
        (copy / "store.json").write_text(text)
        with pytest.raises(StoreError):
            ClipStore(copy)
    with pytest.raises(StoreError, match="run ffn pack"):
        ClipStore(tmp_path)


def test_long_videos_are_encoded_in_parts(root, records, tmp_path, monkeypatch):
    whole = video_module.encode_clip(records[0], "", 256, 90)
    monkeypatch.setattr(video_module, "CHUNK_BYTES", 5 * 64 * 48 * 3)
    assert video_module.encode_clip(records[0], "", 256, 90) == whole
