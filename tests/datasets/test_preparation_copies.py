"""Copies of videos in another format: the same frames and colors, complete or absent."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from preparation_layouts import Layouts, index, problems, write_damaged, write_videos

from ffn.data import open_video
from ffn.datasets import DATASETS, CopySettings, Entry, Listing, PreparationError, prepare


def test_a_copy_made_before_is_kept_and_a_broken_one_made_again(layouts: Layouts) -> None:
    write_videos(layouts, 2)
    original = {p: p.read_bytes() for p in layouts.root.rglob("*.mp4")}
    folder = layouts.root / "small"
    copies = CopySettings(folder, short_side=16)
    prepare("folder", layouts.root, copies=copies)
    assert {p: p.read_bytes() for p in original} == original
    rows = index(layouts.root)
    assert [row["path"] for row in rows] == ["small/train/run/0.mp4", "small/train/run/1.mp4"]
    assert {(row["width"], row["height"]) for row in rows} == {("22", "16")}
    kept, broken = folder / "train/run/0.mp4", folder / "train/run/1.mp4"
    before = kept.stat().st_ino
    broken.write_bytes(broken.read_bytes()[:300])
    (folder / "train/run/.0.partial.mp4").write_bytes(b"left by a killed process")

    summary = prepare("folder", layouts.root, copies=copies, overwrite=True)

    assert summary.problems == []
    assert kept.stat().st_ino == before
    assert len(open_video(broken)) == 6

    # Copies are no videos of the data set.
    again = prepare("folder", layouts.root, overwrite=True)
    assert again.description["listed"] == {"train": 2, "val": 2}
    assert again.problems == []


def test_reencoded_video_is_constant_closed_and_upright(layouts: Layouts, numbers) -> None:
    layouts.video("train/run/a.mp4", 30, halves=True, rotation=90, stream={"g": "30", "bf": "3"})
    layouts.video("val/run/a.mp4", 3)
    copies = CopySettings(layouts.root.parent / "small", short_side=None, gop=7)

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


def test_reencoding_keeps_colors_of_full_range_and_of_hd(
    tmp_path: Path, layouts: Layouts, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    monkeypatch.setattr("ffn.datasets.copies.QUANTIZER", "5")
    prepare("folder", layouts.root, copies=CopySettings(tmp_path / "new"))

    copy = open_video(tmp_path / "new/train/run/a.mp4").read([0])[0].numpy().astype(int)
    for part in (np.s_[4:28, 4:44], np.s_[36:60, 4:44], np.s_[4:28, 52:92], np.s_[36:60, 52:92]):
        assert np.abs(copy[part] - colors[part]).max() <= 6


def test_parts_of_videos_and_folders_have_files_of_their_own(
    layouts: Layouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The video has 25 frames per second."""
    layouts.video("a.mp4", 48)
    layouts.frames("b", 7, first=0)
    times = [(1.1, 1.2), (1.4, 1.45), (None, 0.1), (1.8, None), (1, 2)]
    given = [("a.mp4", *part) for part in times] + [("b", None, None)]

    def parts(videos, lists) -> Listing:
        listing = Listing(["run"], ["train"])
        for n, (path, start, end) in enumerate(given):
            entry = Entry("train", f"part{n}", "run", f"list:{n}", path, start=start, end=end)
            listing.entries.append(entry)
        return listing

    monkeypatch.setitem(DATASETS, "parts", parts)
    copies = CopySettings(layouts.root / "x")
    assert prepare("parts", layouts.root, copies=copies).problems == []

    rows = index(layouts.root)
    stems = ["a_1.1_1.2", "a_1.4_1.45", "a__0.1", "a_1.8_", "a_000001_000002", "b"]
    assert [row["path"] for row in rows] == [f"x/{stem}.mp4" for stem in stems]
    assert (rows[-1]["fps"], rows[-1]["frames"]) == ("12", "7")
    for row, (path, *part) in zip(rows, given, strict=True):
        video, original = open_video(layouts.root / row["path"]), open_video(layouts.root / path)
        expected = range(7) if path == "b" else original.between(*part)
        assert len(video) == len(expected)
        difference = video.read(range(len(video))).int() - original.read(expected)
        assert difference.abs().max() <= 3  # frames differ by 4

    for path, message in (("../a.mp4", "is outside of"), ("a.mkv", "two originals would have")):
        given[:] = [(path, None, None), ("a.mp4", None, None)]
        layouts.video(path)
        with pytest.raises(PreparationError, match=message):
            prepare("parts", layouts.root, copies=copies, overwrite=True)


def test_a_video_that_breaks_off_has_no_copy(layouts: Layouts) -> None:
    write_videos(layouts, 1)
    write_damaged(layouts, "train/run/b.mp4")

    summary = prepare("folder", layouts.root, copies=CopySettings(layouts.root / "x"))

    assert problems(summary) == {("conversion", "train", "train/run/b.mp4")}
    assert [row["path"] for row in index(layouts.root)] == ["x/train/run/0.mp4"]
    assert not (layouts.root / "x/train/run/b.mp4").exists()


def test_folders_for_copies_that_are_refused(layouts: Layouts) -> None:
    write_videos(layouts, 1)
    other = layouts.root.parent / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")

    with pytest.raises(FileExistsError, match="holds something else"):
        prepare("folder", layouts.root, copies=CopySettings(other))
    with pytest.raises(PreparationError, match="holds the originals"):
        prepare("folder", layouts.root, copies=CopySettings(layouts.root.parent))
    prepare("folder", layouts.root, copies=CopySettings(layouts.root / "x"))
    copies = CopySettings(layouts.root / "x", short_side=100)
    with pytest.raises(FileExistsError, match=r"copies with .*256.*, not .*100"):
        prepare("folder", layouts.root, copies=copies, overwrite=True)
    with pytest.raises(PreparationError, match="gop is 0"):
        CopySettings(other, gop=0)
