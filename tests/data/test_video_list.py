"""The list of the videos of a run: what it holds, and what it says about changes."""

from __future__ import annotations

import gzip

import pytest

from ffn.data import Record, Splits
from ffn.data.video_list import (
    describe_changes,
    list_videos,
    read_videos,
    videos_sha256,
    with_contents_of,
    with_removed,
    write_videos,
)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "frames").mkdir()
    for name, length in (("1", 1), ("2", 8), ("3", 2), ("4", 4), (".x", 16)):
        (tmp_path / "frames" / name).write_bytes(bytes(length))
    (tmp_path / "a, b.mp4").write_bytes(bytes(11))
    (tmp_path / "c.mp4").write_bytes(bytes(7))
    return tmp_path


def splits(root, *, missing=()):
    train = [
        Record(str(root / "a, b.mp4"), 1, start=0.5),
        Record(str(root / "frames"), 0, frames=12),
        Record(str(root / "frames"), 0, frames=12),
        Record("/elsewhere/x.mp4", 0),
    ]
    val = [Record(str(root / "c.mp4"), 1, end=2.0)]
    kept = [record for number, record in enumerate(train) if number not in missing]
    return Splits(kept, val, ["x", "y"])


def test_lines(root):
    assert [tuple(video) for video in list_videos(splits(root), root)] == [
        ("train", "a, b.mp4", "1", "", "0.5", "", "11"),
        ("train", "frames", "0", "12", "", "", "4 files, 7 bytes in 3 of them"),
        ("train", "frames", "0", "12", "", "", "4 files, 7 bytes in 3 of them"),
        ("train", "/elsewhere/x.mp4", "0", "", "", "", ""),
        ("val", "c.mp4", "1", "", "", "2.0", "7"),
    ]


def test_names_survive_the_file(root):
    odd = ['a "b", c\n.mp4', "\udcff.mp4", "ä.mp4"]
    listed = list_videos(Splits([Record(name, 0) for name in odd], [], ["x"]), root)
    write_videos(root / "list.csv.gz", listed)

    assert read_videos(root / "list.csv.gz") == listed
    assert [video.path for video in listed] == odd


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"text", gzip.compress(b"a,b\n1,2\n", mtime=0), b"\x1f\x8b\x08"),
        b"\x1f\x8b\x08" + bytes(7) + b"\xff",  # damaged after the header
    ],
)
def test_damaged_files_are_refused(root, content):
    (root / "list.csv.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"list\.csv\.gz is damaged"):
        read_videos(root / "list.csv.gz")


def test_the_hash_is_that_of_the_written_lines(root):
    listed = list_videos(splits(root), root)
    write_videos(root / "list.csv.gz", listed)
    other = [listed[0]._replace(end="3"), *listed[1:]]

    assert len({videos_sha256(listed), videos_sha256(other), videos_sha256(listed[::-1])}) == 3
    assert videos_sha256(read_videos(root / "list.csv.gz")) == videos_sha256(listed)


def test_changes(root):
    before = list_videos(splits(root), root)

    assert describe_changes(before, before) == []
    assert describe_changes(before, before[1:]) == [
        "1 missing from the lists, first train a, b.mp4 (from 0.5 s to its end)"
    ]
    label = [before[0]._replace(label="0", content="12"), *before[1:]]
    assert describe_changes(before, label) == [
        "1 changed, first train a, b.mp4 (from 0.5 s to its end) (label 1 -> 0, bytes 11 -> 12)"
    ]
    assert describe_changes(before[1:], before)[0].startswith("1 new in the lists, first train a, ")
    assert describe_changes(before, [*before[:2], *before[3:]]) == [
        "1 missing from the lists, first train frames"
    ]


@pytest.mark.parametrize("missing", [(), (0,), (1,), (2,), (1, 2), (0, 3), (0, 1, 2, 3)])
def test_removed_videos_keep_their_places(root, missing):
    """Of a video that is listed twice, the last one is taken to be the removed one."""
    before = list_videos(splits(root), root)
    whole, indices, lines = with_removed(splits(root, missing=missing), before, root)

    assert whole.train == splits(root).train
    assert whole.val == splits(root).val
    expected = {2 if n == 1 and 2 not in missing else n for n in missing}
    assert indices == expected
    assert lines == [before[n] for n in sorted(expected)]


def test_contents_of_replaced_files(root):
    before = list_videos(splits(root), root)
    (root / "c.mp4").write_bytes(bytes(99))
    now = list_videos(splits(root), root)

    assert describe_changes(before, now) == [
        "1 with another file, first val c.mp4 (from 0 s to 2.0 s) (bytes 7 -> 99)"
    ]
    assert with_contents_of(before, now) == before
    assert with_contents_of([], now) == now
