"""A clip store returns the frames of `open_video` and names damaged clips."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import pickle
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from store_clips import packed, write_set, write_wave_video
from torchvision.io import encode_jpeg
from torchvision.transforms.v2 import functional as F

from ffn.data import (
    ClipStore,
    Preprocessing,
    Record,
    StoreError,
    VideoDataset,
    VideoError,
    make_loader,
    open_video,
    pack,
)
from ffn.data.store.shards import Span

pytest.importorskip("av")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("set")


@pytest.fixture(scope="module")
def records(root):
    return write_set(root)


@pytest.fixture(scope="module")
def raw(root, records):
    return packed(root, records, root / "raw", shard_mib=1)


@pytest.fixture(scope="module")
def jpeg(root, records):
    return packed(root, records, root / "jpeg", format="jpeg")


@pytest.fixture
def copy(raw, tmp_path):
    """A store to damage."""
    import shutil

    return Path(shutil.copytree(raw, tmp_path / "copy"))


def psnr(one, other):
    """Peak signal-to-noise ratio in dB, per frame."""
    error = ((one.double() - other.double()) ** 2).flatten(1).mean(1)
    return 10 * torch.log10(255**2 / error)


def every(video):
    return video.read(range(len(video)))


@pytest.mark.parametrize("short_side", [48, 100, 32])
def test_raw_frames_are_those_of_the_video_resized_as_documented(
    short_side, root, records, tmp_path
):
    store = ClipStore(packed(root, records[:2], tmp_path / "s", short_side=short_side), root=root)
    for record in records[:2]:
        expected = every(open_video(record.path))
        if short_side < 48:
            x = F.resize(expected.permute(0, 3, 1, 2), [32], antialias=True)
            assert x.shape == (12, 3, 32, 42)  # the longer side is 64 * 32 / 48, rounded down
            expected = x.permute(0, 2, 3, 1)
        assert torch.equal(every(store.open_record(record)), expected)


def test_jpeg_frames_are_close_and_decode_as_pillow_decodes_them(jpeg, root, records):
    image = pytest.importorskip("PIL.Image")
    store = ClipStore(jpeg, root=root)
    for record in records[:3]:
        found = every(store.open_record(record))
        assert psnr(found, every(open_video(record.path))).min() > 40
    # The bytes are plain JPEG files, one after another, where the documented tables say.
    shard = (jpeg / "shard-00000.bin").read_bytes()
    ends = np.frombuffer(shard[8 : 8 + 12 * 8], "<u8")
    body = 8 + 12 * 20
    for number, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        pixels = np.asarray(image.open(io.BytesIO(shard[body + int(first) : body + int(end)])))
        assert np.array_equal(pixels, store.open_record(records[0]).read([number])[0].numpy())


def without_simplejpeg(monkeypatch):
    from ffn.data.store import clip

    monkeypatch.setattr(clip, "_simplejpeg", lambda: None)


def test_both_decoders_give_the_same_pixels(jpeg, root, records, monkeypatch):
    pytest.importorskip("simplejpeg")
    store = ClipStore(jpeg, root=root)
    one = every(store.open_record(records[0]))
    without_simplejpeg(monkeypatch)
    assert torch.equal(every(store.open_record(records[0])), one)


@pytest.mark.parametrize("fallback", [True, False])
@pytest.mark.parametrize("format", ["jpeg", "raw"])
def test_bytes_that_are_not_a_frame_are_refused(format, fallback, monkeypatch):
    from ffn.data.store.clip import decode_frame

    if fallback:
        without_simplejpeg(monkeypatch)
    image = torch.zeros(16, 24, 3, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"not a (raw frame|JPEG) of shape \(16, 24, 3\)"):
        decode_frame(bytearray(b"something else"), format, image)
    other = torch.full((3, 24, 16), 90, dtype=torch.uint8)  # higher than wide
    data = {"jpeg": encode_jpeg(other).numpy().tobytes(), "raw": bytes(24 * 16 * 3 + 1)}
    with pytest.raises(ValueError, match=r"(raw frame|JPEG) of shape"):
        decode_frame(bytearray(data[format]), format, image)


def test_a_jpeg_of_another_size_is_not_decoded(monkeypatch):
    """Its pixels may need more memory than there is."""
    from ffn.data.store import clip

    without_simplejpeg(monkeypatch)
    monkeypatch.setattr(clip, "decode_jpeg", None)
    data = bytearray(encode_jpeg(torch.zeros(3, 24, 16, dtype=torch.uint8)).numpy().tobytes())
    size = data.index(b"\xff\xc0") + 5  # height and width in the header
    for height, width in ((24, 16), (9000, 12_000), (65_500, 65_500)):
        data[size : size + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
        with pytest.raises(ValueError, match=rf"{height}, {width}|exceeds limit"):
            clip.decode_frame(data, "jpeg", torch.zeros(16, 24, 3, dtype=torch.uint8))


def test_quality_costs_bytes_and_gains_likeness(root, records, tmp_path):
    sizes, likeness = [], []
    for quality in (50, 95):
        folder = tmp_path / str(quality)
        report = pack(records[:1], folder, root=root, quality=quality)
        sizes.append(report.bytes)
        found = every(ClipStore(folder, root=root).open_record(records[0]))
        likeness.append(float(psnr(found, every(open_video(records[0].path))).mean()))
    assert sizes[0] * 1.5 < sizes[1]
    assert likeness[0] + 2 < likeness[1]


def test_frames_come_in_the_requested_order(write_video, numbers, tmp_path):
    video = write_video(tmp_path / "a.mp4", 30, stream={"g": "30", "bf": "2"})
    pack([Record(video, 0)], tmp_path / "s")
    clip = ClipStore(tmp_path / "s").open(video)
    assert len(clip) == 30
    assert numbers(clip.read([7, 3, 29, 3, 0])) == [7, 3, 29, 3, 0]
    assert numbers(every(clip)) == list(range(30))
    with pytest.raises(VideoError, match="frame 30: the video has 30 frames"):
        clip.read([30])
    with pytest.raises(VideoError, match="frame -1: frames count from 0"):
        clip.read([-1])
    with pytest.raises(ValueError, match="no frame of"):
        clip.read([])


def test_repeated_frames_are_decoded_once(jpeg, root, records, monkeypatch):
    from ffn.data.store import video

    decoded = []
    original = video.decode_frame
    monkeypatch.setattr(video, "decode_frame", lambda *given: decoded.append(1) or original(*given))
    ClipStore(jpeg, root=root).open_record(records[0]).read([5, 5, 2, 5])
    assert len(decoded) == 2


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
    with pytest.raises(VideoError, match=r"no frame between 0.05 and 0.29 s"):
        clip.between(0.05, 0.29)


def test_time_ranges_are_clips_of_their_own(write_video, numbers, tmp_path):
    path = write_video(tmp_path / "a.mp4", 30)
    parts = [Record(path, 0, start=0.2, end=0.4), Record(path, 1, start=0.4)]  # 25 per second
    report = pack(parts, tmp_path / "parts")
    assert (report.packed, report.frames) == (2, 5 + 20)
    store = ClipStore(tmp_path / "parts")
    for part, expected in zip(parts, (range(5, 10), range(10, 30)), strict=True):
        clip = store.open_record(part)
        usable = clip.between(part.start, part.end)
        assert numbers(clip.read(usable)) == list(expected)
    with pytest.raises(VideoError, match=r"holds 0.2 … 0.4 s, 0.4 … None s of it, not 0.1 … 0.5 s"):
        store.open(path, start=0.1, end=0.5)

    pack([Record(path, 0)], tmp_path / "whole")
    clip = ClipStore(tmp_path / "whole").open_record(parts[0])
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
    with pytest.raises(VideoError, match=r"the list has 10 frames, .* has 8"):
        store.open_record(Record(folder, 0, frames=10))


def test_index_has_the_documented_facts(raw, root, records):
    """Parsed from the bytes as docs/clip_store.md describes them."""
    manifest = json.loads((raw / "store.json").read_text())
    data = (raw / manifest["index"]["name"]).read_bytes()
    assert data[:8] == b"ffnclip\x01"
    fields = [*zip(("offset", "bytes"), ("<u8",) * 2, strict=True)]
    fields += [(name, "<f8") for name in ("start", "end", "fps")]
    fields += [("key_offset", "<u8"), ("key_bytes", "<u4"), ("shard", "<u4"), ("label", "<i4")]
    fields += [(name, "<u4") for name in ("frames", "width", "height", "crc", "timed")]
    rows = np.frombuffer(data[8:], np.dtype(fields), count=8)
    keys = data[8 + 8 * (80 + 8 + 4) :].decode()
    for number, row in enumerate(rows):
        start = int(row["key_offset"])
        assert keys[start : start + int(row["key_bytes"])] == f"videos/{number}.mkv"
        assert (row["label"], row["frames"], row["width"], row["height"]) == (number, 12, 64, 48)
        assert np.isnan([row["start"], row["end"]]).all()
        assert row["fps"] == pytest.approx(25)
        assert row["bytes"] == 12 * (20 + 64 * 48 * 3)
        shard = (raw / f"shard-{row['shard']:05d}.bin").read_bytes()
        header = shard[row["offset"] : row["offset"] + 12 * 20]
        assert zlib.crc32(header) == row["crc"]
        assert np.allclose(np.frombuffer(header[96:192], "<f8"), np.arange(12) / 25, atol=1e-3)
        first = shard[row["offset"] + 240 : row["offset"] + 240 + 64 * 48 * 3]
        assert zlib.crc32(first) == np.frombuffer(header[192:], "<u4")[0]
        assert torch.equal(
            torch.frombuffer(bytearray(first), dtype=torch.uint8).view(48, 64, 3),
            open_video(records[number].path).read([0])[0],
        )


def test_unknown_videos_are_named(raw, root):
    store = ClipStore(raw, root=root)
    with pytest.raises(VideoError, match=r"videos/99\.mkv: is not in the store .*videos/0\.mkv"):
        store.open("videos/99.mkv")
    assert [key for key, *_ in store.clips()] == [f"videos/{i}.mkv" for i in range(8)]


def test_names_need_not_be_utf8(root, records, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 \xc3\xa9 10%.mkv")
    os.link(records[0].path, path)
    pack([Record(path, 0)], tmp_path / "s", root=tmp_path)
    store = ClipStore(tmp_path / "s", root=tmp_path)
    assert len(store.open_record(Record(path, 0))) == 12
    assert os.fsencode(next(store.clips())[0]) == b"caf\xe9 \xc3\xa9 10%.mkv"


def test_systems_without_preadv_read_the_same(jpeg, root, records, monkeypatch):
    store = ClipStore(jpeg, root=root)
    expected = every(store.open_record(records[1]))
    monkeypatch.delattr(os, "preadv")
    assert torch.equal(every(store.open_record(records[1])), expected)


def test_a_set_may_move(raw, root, records, tmp_path):
    moved = [Record(str(tmp_path / Path(r.path).relative_to(root)), r.label) for r in records]
    store = ClipStore(raw, root=tmp_path)
    assert len(store.open_record(moved[3])) == 12


# Damage


def corrupt(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_flipped_byte_names_clip_and_frame(copy, root, records):
    size = 64 * 48 * 3
    row = ClipStore(copy).open("videos/1.mkv").row
    shard = copy / f"shard-{int(row['shard']):05d}.bin"
    corrupt(shard, int(row["offset"]) + 240 + 5 * size + 100)  # in its frame 5
    store = ClipStore(copy, root=root)
    with pytest.raises(VideoError, match=r"videos/1\.mkv, frame 5: the checksum differs"):
        every(store.open("videos/1.mkv"))
    good = [i for i in range(12) if i != 5]
    original = open_video(records[1].path)
    assert torch.equal(store.open("videos/1.mkv").read(good), original.read(good))
    for other in [records[0], *records[2:]]:
        assert torch.equal(every(store.open_record(other)), every(open_video(other.path)))
    assert [error.path for error in store.verify()] == ["videos/1.mkv"]

    unchecked = ClipStore(copy, root=root, check=False).open("videos/1.mkv").read([5])
    differs = (unchecked != original.read([5])).sum()
    assert differs == 1  # the flipped bit arrives: the check is what found it


def test_flipped_byte_of_a_header_is_found_even_unchecked(copy):
    row = ClipStore(copy).open("videos/2.mkv").row
    corrupt(copy / f"shard-{int(row['shard']):05d}.bin", int(row["offset"]) + 3)
    with pytest.raises(VideoError, match=r"videos/2\.mkv: the checksum of its header differs"):
        ClipStore(copy, check=False).open("videos/2.mkv").read([0])


def test_cut_shard_names_the_clips_behind_the_cut(tmp_path, root, records):
    folder = packed(root, records, tmp_path / "s", shard_mib=64)
    store = ClipStore(folder, root=root)
    offset = int(store.open("videos/5.mkv").row["offset"])
    with (folder / "shard-00000.bin").open("r+b") as file:
        file.truncate(offset + 1000)
    store = ClipStore(folder, root=root)
    assert [error.path for error in store.verify()] == [f"videos/{i}.mkv" for i in (5, 6, 7)]
    with pytest.raises(VideoError, match=r"videos/6\.mkv.*shard is truncated .*shard-00000"):
        every(store.open("videos/6.mkv"))
    assert len(every(store.open("videos/4.mkv"))) == 12


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"frames": 2**32 - 1, "bytes": 2**62},
            r"the index says that it ends at byte 4,611,.*has \d",
        ),
        ({"frames": 10**9}, r"1,000,000,000 frames do not fit into its bytes"),
        (
            {"frames": 10**9, "offset": 2**63},
            r"the index .* ends at byte 9,223,.*; store\.json says",
        ),
        ({"shard": 7}, r"store\.json does not name the shard .*shard-00007"),
    ],
)
def test_impossible_rows_of_the_index_are_refused(row, message, raw):
    store = ClipStore(raw, check=False)
    store._index.rows = store._index.rows.copy()
    for name, value in row.items():
        store._index.rows[name][1] = value

    with pytest.raises(VideoError, match=rf"videos/1\.mkv: {message}"):
        store.open("videos/1.mkv")
    assert [error.path for error in store.verify()] == ["videos/1.mkv"]


def test_bytes_behind_the_end_of_a_shard_take_no_memory(raw):
    shards = ClipStore(raw)._shards
    size = (raw / "shard-00000.bin").stat().st_size

    (whole,) = shards.read(0, [Span(0, size, 0)], check=False)
    assert len(whole) == size
    for offset, length in ((0, 2**62), (1, size), (2**63, 1)):
        with pytest.raises(EOFError):
            next(shards.read(0, [Span(offset, length, 0)], check=False))


def test_missing_shard_names_its_clips(tmp_path, root):
    records = [
        Record(write_wave_video(tmp_path / f"{i}.mkv", 30, width=160, height=96, seed=i), i)
        for i in range(3)
    ]
    folder = packed(tmp_path, records, tmp_path / "s", shard_mib=1)  # 1.3 MB each
    assert len(ClipStore(folder).manifest.shards) == 3
    (folder / "shard-00001.bin").unlink()
    store = ClipStore(folder)
    assert [error.path for error in store.verify()] == ["1.mkv"]
    with pytest.raises(VideoError, match=r"1\.mkv.*the shard is missing .*shard-00001"):
        store.open("1.mkv").read([0])


def test_damaged_index_is_refused(copy):
    corrupt(copy / "index-00001.bin", 50)
    with pytest.raises(StoreError, match=r"index-00001\.bin is damaged"):
        ClipStore(copy)
    (copy / "index-00001.bin").write_bytes(b"ffnclip\x01")
    with pytest.raises(StoreError, match=r"index-00001\.bin has 8 bytes"):
        ClipStore(copy)
    (copy / "index-00001.bin").unlink()
    with pytest.raises(StoreError, match=r"index-00001\.bin is missing"):
        ClipStore(copy)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "damaged or not a clip store"),
        ("[1]", "damaged or not a clip store"),
        ('{"format": "ffn clip store", "version": 9}', "version 9; this version reads"),
        ('{"format": "ffn clip store", "version": 1}', r"store\.json is damaged"),
    ],
)
def test_damaged_manifest_is_refused(text, message, copy):
    (copy / "store.json").write_text(text)
    with pytest.raises(StoreError, match=message):
        ClipStore(copy)


@pytest.mark.parametrize("name", ["../../home/shard-00000.bin", "/etc/passwd", "shard-00001.bin"])
def test_names_that_lead_elsewhere_are_refused(name, copy):
    text = (copy / "store.json").read_text().replace("shard-00000.bin", name)
    (copy / "store.json").write_text(text)
    with pytest.raises(StoreError, match=r"names '.*'; expected shard-00000\.bin"):
        ClipStore(copy)


def test_folder_without_a_store_is_refused(tmp_path):
    with pytest.raises(StoreError, match=r"holds no clip store .*make one with ffn pack"):
        ClipStore(tmp_path)


# Processes


def read_all(store, numbers, results):
    results.put([int(every(store.open(f"videos/{n}.mkv")).sum()) for n in numbers])


def test_two_processes_read_at_once(jpeg, root, records):
    store = ClipStore(jpeg, root=root)
    expected = [int(every(store.open_record(r)).sum()) for r in records]  # shards are open by now
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    order = list(range(8)) * 5
    both = [context.Process(target=read_all, args=(store, order, results)) for _ in range(2)]
    for process in both:
        process.start()
    found = [results.get(timeout=60) for _ in both]
    for process in both:
        process.join()
    assert found == [[expected[n] for n in order]] * 2


def test_pickled_store_is_small_and_reads(jpeg, root, records):
    store = ClipStore(jpeg, root=root)
    clip = every(store.open_record(records[2]))
    data = pickle.dumps(store)
    assert len(data) < 3000
    assert torch.equal(every(pickle.loads(data).open_record(records[2])), clip)


# Samples


def dataset(records, **options):
    return VideoDataset(
        records, views=(2, 4), preprocessing=Preprocessing(crop=24, resize=32), seed=3, **options
    )


@pytest.mark.parametrize("train", [True, False])
def test_samples_are_those_of_the_videos(train, raw, root, records):
    store = ClipStore(raw, root=root)
    videos = make_loader(dataset(records, train=train), batch_size=4, train=train)
    stored = make_loader(
        dataset(records, train=train, source=store.open_record),
        batch_size=4,
        train=train,
        workers=2,
    )
    for one, other in zip(videos, stored, strict=True):
        assert torch.equal(one["index"], other["index"])
        assert torch.equal(one["label"], other["label"])
        assert all(torch.equal(one["clips"][v], other["clips"][v]) for v in (2, 4))


def test_cached_samples_of_a_store(raw, root, records):
    source = ClipStore(raw, root=root).open_record
    plain = dataset(records, train=True, source=source)
    cached = dataset(records, train=True, source=source, cache_bytes=2**30)
    for key in ((0, 1), (1, 1), (2, 1)):
        assert torch.equal(plain[key]["clips"][4], cached[key]["clips"][4])


def test_missing_clip_fails_or_is_marked(raw, root, records):
    more = [*records, Record(str(root / "videos" / "new.mkv"), 8)]
    source = ClipStore(raw, root=root).open_record
    with pytest.raises(VideoError, match=r"videos/new\.mkv: is not in the store"):
        dataset(more, source=source)[8]
    item = dataset(more, source=source, on_error="skip")[8]
    assert not item["ok"]
    assert "is not in the store" in item["error"]
