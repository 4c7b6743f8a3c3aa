"""Copies of videos in another format: the same frames and colors, complete or absent."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image
from preparation_layouts import Layouts, index, write_videos

from ffn.data import open_video
from ffn.datasets import DATASETS, CopySettings, Entry, Listing, PreparationError, prepare
from ffn.datasets.copies import _targets
from ffn.datasets.media import smaller


def test_extracted_frames_are_those_of_the_video(layouts: Layouts, numbers) -> None:
    write_videos(layouts, 2)
    original = {p: p.read_bytes() for p in layouts.root.rglob("*.mp4")}
    copies = CopySettings(layouts.root / "frames", "frames", short_side=16)

    summary = prepare("folder", layouts.root, copies=copies)

    assert summary.problems == []
    rows = index(layouts.root)
    assert [row["path"] for row in rows] == ["frames/train/run/0", "frames/train/run/1"]
    assert [(r["frames"], r["width"], r["height"], r["fps"]) for r in rows] == [
        ("5", "21", "16", ""),
        ("6", "21", "16", ""),
    ]
    names = sorted(p.name for p in (layouts.root / rows[1]["path"]).iterdir())
    assert names == [f"{n:05d}.jpg" for n in range(1, 7)]
    folder = open_video(layouts.root / rows[1]["path"])
    assert numbers(folder.read(range(6))) == [0, 1, 2, 3, 4, 5]
    assert {p: p.read_bytes() for p in original} == original


def test_a_copy_made_before_is_kept_and_a_broken_one_made_again(layouts: Layouts) -> None:
    write_videos(layouts, 2)
    folder = layouts.root / "small"
    prepare("folder", layouts.root, copies=CopySettings(folder, "mp4"))
    kept, broken = folder / "train/run/0.mp4", folder / "train/run/1.mp4"
    before = kept.stat().st_ino
    broken.write_bytes(broken.read_bytes()[:300])
    (folder / "train/run/.0.partial.mp4").write_bytes(b"left by a killed process")

    summary = prepare("folder", layouts.root, copies=CopySettings(folder, "mp4"), overwrite=True)

    assert summary.problems == []
    assert kept.stat().st_ino == before
    assert len(open_video(broken)) == 6

    # Copies are no videos of the data set.
    again = prepare("folder", layouts.root, overwrite=True)
    assert [s.listed for s in again.splits] == [2, 2]
    assert again.problems == []


def test_reencoded_video_is_constant_closed_and_upright(layouts: Layouts, numbers) -> None:
    layouts.video("train/run/a.mp4", 30, halves=True, rotation=90, stream={"g": "30", "bf": "3"})
    layouts.video("val/run/a.mp4", 3)
    copies = CopySettings(layouts.root.parent / "small", "mp4", short_side=None, gop=7)

    summary = prepare("folder", layouts.root, copies=copies)

    row = index(layouts.root)[0]
    assert summary.problems == []
    assert row["path"] == str(layouts.root.parent / "small/train/run/a.mp4")  # not under the root
    assert (row["frames"], row["width"], row["height"], row["fps"]) == ("30", "24", "32", "25")
    with av.open(row["path"]) as container:
        assert [stream.type for stream in container.streams] == ["video"]
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        packets = [packet for packet in container.demux(stream) if packet.size]
        keys = [number for number, packet in enumerate(packets) if packet.is_keyframe]
        assert keys == [0, 7, 14, 21, 28]
        assert [p.pts for p in packets] == [p.dts for p in packets]  # no frame waits for a later
        assert len({b.pts - a.pts for a, b in pairwise(packets)}) == 1
    before = open_video(layouts.root / "train/run/a.mp4").read(range(30)).int()
    after = open_video(row["path"]).read(range(30)).int()
    assert (before - after).abs().max() <= 3
    assert (before.float() - after.float()).mean().abs() < 0.5


def test_reencoding_keeps_colors_of_full_range_and_of_hd(tmp_path: Path, layouts: Layouts) -> None:
    """BT.709 in full range becomes BT.601 in limited range: other numbers, the same colors."""
    path = layouts.root / "train/run/a.mp4"
    path.parent.mkdir(parents=True)
    colors = np.zeros((64, 96, 3), dtype=np.uint8)
    colors[:32, :48], colors[32:, :48] = (200, 40, 30), (30, 180, 60)
    colors[:32, 48:], colors[32:, 48:] = (40, 60, 210), (230, 230, 230)
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=10, options={"qp": "5"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        stream.codec_context.colorspace, stream.codec_context.color_range = 1, 2
        for _ in range(3):
            frame = av.VideoFrame.from_ndarray(colors, format="rgb24").reformat(
                format="yuv420p", dst_colorspace="ITU709", dst_color_range="JPEG"
            )
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    layouts.video("val/run/a.mp4", 3)

    prepare("folder", layouts.root, copies=CopySettings(tmp_path / "new", "mp4", quantizer=5))

    copy = open_video(tmp_path / "new/train/run/a.mp4").read([0])[0].numpy().astype(int)
    for part in (np.s_[4:28, 4:44], np.s_[36:60, 4:44], np.s_[4:28, 52:92], np.s_[36:60, 52:92]):
        assert np.abs(copy[part] - colors[part]).max() <= 6


def test_parts_of_a_video_become_files_of_their_own(layouts: Layouts, numbers) -> None:
    rows = [("run", "abcdefghijk", 1, 2, "train"), ("jump", "abcdefghijk", 2, 4, "train")]
    columns = "label,youtube_id,time_start,time_end,split"
    layouts.kinetics_csv("train.csv", rows, columns)
    layouts.long_video("train/abcdefghijk.mp4", 25)

    summary = prepare("k700", layouts.root, copies=CopySettings(layouts.root / "x", "mp4"))

    assert summary.problems == []
    written = index(layouts.root)
    assert "start" not in written[0]
    assert [row["path"] for row in written] == [
        "x/train/abcdefghijk_000001_000002.mp4",
        "x/train/abcdefghijk_000002_000004.mp4",
    ]
    video = open_video(layouts.root / written[1]["path"])
    assert numbers(video.read(range(len(video)))) == list(range(10, 20))


Times = tuple[float | None, float | None]


def prepare_parts(
    layouts: Layouts, monkeypatch: pytest.MonkeyPatch, times: list[Times], format: str = "mp4"
) -> list[str]:
    """Copy parts of `src.mp4`; returns the paths of the copies, in the order of the times."""

    def parts(videos, lists) -> Listing:
        listing = Listing(["run"], ["train"])
        for n, (start, end) in enumerate(times):
            where = f"list:{n}"
            entry = Entry("train", f"part{n}", "run", where, "src.mp4", start=start, end=end)
            listing.entries.append(entry)
        return listing

    monkeypatch.setitem(DATASETS._entries, "parts", parts)
    copies = CopySettings(layouts.root / "x", format)
    prepare("parts", layouts.root, copies=copies, overwrite=True)
    return [row["path"] for row in index(layouts.root)]


@pytest.mark.parametrize("format", ["mp4", "frames"])
def test_parts_within_a_second_have_copies_of_their_own(
    layouts: Layouts, numbers, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """The video has 25 frames per second: frame n is shown from n / 25 s."""
    layouts.video("src.mp4", 58)
    times = [(1.1, 1.2), (1.2, 1.3), (1.3, 1.4), (1.4, 1.45), (None, 0.1), (2.2, None), (1, 2)]

    paths = prepare_parts(layouts, monkeypatch, times, format)

    stems = ["src_1.1_1.2", "src_1.2_1.3", "src_1.3_1.4", "src_1.4_1.45", "src__0.1", "src_2.2_"]
    suffix = ".mp4" if format == "mp4" else ""
    assert paths == [f"x/{stem}{suffix}" for stem in (*stems, "src_000001_000002")]
    original = open_video(layouts.root / "src.mp4")
    for path, part in zip(paths, times, strict=True):
        video = open_video(layouts.root / path)
        expected = original.read(original.between(*part))
        assert numbers(video.read(range(len(video)))) == numbers(expected)


def test_two_copies_of_one_name_are_refused(tmp_path: Path) -> None:
    """A part of clip.avi has the name of another file."""
    paths = ["clip_000001_000002.avi", "clip.avi"]
    for path in paths:
        (tmp_path / path).touch()
    entries = [Entry("train", path, "run", path, path) for path in paths]
    entries[1].start, entries[1].end = 1.0, 2.0
    with pytest.raises(PreparationError, match=r"two originals .*clip_000001_000002\.mp4"):
        _targets(CopySettings(tmp_path / "x", "mp4"), entries, tmp_path)


@pytest.mark.parametrize(("format", "absolute"), [("mp4", True), ("frames", False)])
def test_videos_outside_of_the_root_are_copied_and_stay(
    layouts: Layouts, monkeypatch: pytest.MonkeyPatch, format: str, absolute: bool
) -> None:
    """Listed by absolute paths, also inside the root, and by paths that climb out of it."""
    layouts.video("../ext/a.mp4", 5)
    layouts.frames("../ext/b", 6)
    layouts.frames("c", 7)
    layouts.video("../a.mp4", 3)  # where the copy of ../ext/a.mp4 would be without `outside`
    outside = layouts.root.parent
    paths = ["../ext/a.mp4", "../ext/b", "../set/c"]
    paths = [os.path.normpath(layouts.root / path) for path in paths] if absolute else paths
    before = {p: p.read_bytes() for p in outside.rglob("*.*") if p.is_file()}

    def listed(videos, lists) -> Listing:
        entries = [Entry("train", path, "run", path, path) for path in paths]
        return Listing(["run"], ["train"], entries)

    monkeypatch.setitem(DATASETS._entries, "listed", listed)
    summary = prepare("listed", layouts.root, copies=CopySettings(layouts.root / "x", format))

    assert [p for p in summary.problems if p.kind != "unlisted"] == []
    suffix = ".mp4" if format == "mp4" else ""
    names = [f"outside{outside}/ext/a", f"outside{outside}/ext/b", "c"]
    rows = index(layouts.root)
    assert [row["path"] for row in rows] == [f"x/{name}{suffix}" for name in names]
    assert [len(open_video(layouts.root / row["path"])) for row in rows] == [5, 6, 7]
    assert {p: p.read_bytes() for p in before} == before


def test_copies_of_files_that_differ_in_suffix_alone(layouts: Layouts) -> None:
    layouts.video("train/run/a.avi", 5, codec="mpeg4", stream={})
    layouts.video("train/run/a.mp4", 6)
    layouts.video("val/run/a.mp4", 7)

    prepare("folder", layouts.root, copies=CopySettings(layouts.root / "x", "mp4"))

    rows = index(layouts.root)
    assert [row["frames"] for row in rows] == ["5", "6"]
    assert len({row["path"] for row in rows}) == 2
    assert [len(open_video(layouts.root / row["path"])) for row in rows] == [5, 6]


def test_frame_folders_become_videos_and_smaller_folders(layouts: Layouts, numbers) -> None:
    layouts.frames("train/run/a", 7, first=0)
    layouts.frames("val/run/a", 3)

    prepare("folder", layouts.root, copies=CopySettings(layouts.root / "x", "mp4", fps=5))

    row = index(layouts.root)[0]
    assert (row["path"], row["frames"], row["fps"]) == ("x/train/run/a.mp4", "7", "5")
    assert numbers(open_video(layouts.root / row["path"]).read(range(7))) == list(range(7))


def test_a_video_that_breaks_off_has_no_copy(layouts: Layouts) -> None:
    write_videos(layouts, 1)
    layouts.video("train/run/b.mp4", 40, stream={"g": "40", "bf": "0", "qp": "5"})
    path = layouts.root / "train/run/b.mp4"
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][20]
    data[packet.pos + 4 : packet.pos + packet.size - 4] = os.urandom(packet.size - 8)
    path.write_bytes(data)

    summary = prepare("folder", layouts.root, copies=CopySettings(layouts.root / "x", "frames"))

    assert [(p.kind, p.name) for p in summary.problems] == [("conversion", "train/run/b.mp4")]
    assert [row["path"] for row in index(layouts.root)] == ["x/train/run/0"]
    assert not (layouts.root / "x/train/run/b").exists()


def test_folders_for_copies_that_are_refused(layouts: Layouts) -> None:
    write_videos(layouts, 1)
    other = layouts.root.parent / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")

    with pytest.raises(FileExistsError, match="holds something else"):
        prepare("folder", layouts.root, copies=CopySettings(other, "mp4"))
    with pytest.raises(PreparationError, match="holds the originals"):
        prepare("folder", layouts.root, copies=CopySettings(layouts.root.parent, "mp4"))
    prepare("folder", layouts.root, copies=CopySettings(layouts.root / "x", "mp4"))
    copies = CopySettings(layouts.root / "x", "mp4", short_side=100)
    with pytest.raises(FileExistsError, match=r"copies with .*256.*, not .*100"):
        prepare("folder", layouts.root, copies=copies, overwrite=True)
    with pytest.raises(PreparationError, match=r"gop is 0; expected ≥ 1"):
        CopySettings(other, "mp4", gop=0)


def test_smaller() -> None:
    for size, short_side, even, expected in (
        ((1920, 1080), 256, True, (456, 256)),
        ((1080, 1920), 256, False, (256, 455)),
        ((320, 240), 256, True, (320, 240)),
        ((333, 251), None, True, (332, 252)),
        ((1, 1), None, True, (2, 2)),
    ):
        assert smaller(*size, short_side, even=even) == expected


def test_extracted_pixels_are_the_readers(layouts: Layouts) -> None:
    """Against the reader that training uses; JPEG loses little of a plain picture."""
    write_videos(layouts, 1, rotation=-90, halves=True)
    prepare("folder", layouts.root, copies=CopySettings(layouts.root / "x", "frames", None, 100))

    frame = np.asarray(Image.open(layouts.root / "x/train/run/0/00003.jpg")).astype(int)
    read = open_video(layouts.root / "train/run/0.mp4").read([2])[0].numpy().astype(int)

    assert frame.shape == read.shape == (32, 24, 3)
    assert np.abs(frame - read).max() <= 4
