"""The official layouts in miniature: the content of the index, and the reported problems."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from preparation_layouts import NAMES, Layouts, index, labels, problems

from ffn.data import read_annotation_rows, read_annotations, read_classes, swap_pairs
from ffn.datasets import (
    DATASETS,
    CopySettings,
    PreparationError,
    SplitSettings,
    mirror_pairs,
    mirror_problems,
    prepare,
)


def test_something_v1(layouts: Layouts) -> None:
    layouts.sthv1()

    summary = prepare("sthv1", layouts.root)

    train = index(layouts.root, "train")
    assert list(train[0]) == ["path", "label", "frames", "fps", "duration", "width", "height"]
    assert [(row["path"].rpartition("/")[2], row["label"]) for row in train] == [
        (str(n), NAMES[n % 4]) for n in (1, 2, 3, 4, 6, 7, 8)
    ]
    assert [row["frames"] for row in train] == [str(3 + n % 4) for n in (1, 2, 3, 4, 6, 7, 8)]
    assert {(row["fps"], row["duration"], row["width"], row["height"]) for row in train} == {
        ("", "", "32", "24")
    }
    assert problems(summary) == {
        ("missing", "train", "9"),
        ("unreadable", "train", "5"),
        ("unlisted", "", "20bn-something-something-v1/99"),
    }
    gap = next(one for one in summary.problems if one.kind == "unreadable")
    assert "00002.jpg is missing" in gap.detail
    assert any("something-something-v1-test.csv holds no labels" in note for note in summary.notes)
    assert summary.description["listed"] == {"train": 9, "val": 4}
    # The fingerprint, by hand.
    mark = summary.description["fingerprint"]
    train, val = (1, 2, 3, 4, 6, 7, 8), (11, 12, 13, 14)
    lines = [f"train\t{n}\t{NAMES[n % 4]}\n" for n in train]
    lines += [f"val\t{n}\t{NAMES[n % 4]}\n" for n in val]
    assert mark["sha256"] == hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
    assert mark["videos"] == {"train": 7, "val": 4}
    assert mark["videos_per_class"]["train"] == dict(zip(NAMES, (2, 1, 2, 2), strict=True))
    assert mark["classes"] == NAMES
    written = json.loads((layouts.root / "index/dataset.json").read_text())
    assert written["fingerprint"] == mark


@pytest.mark.parametrize("later", [False, True])
def test_something_v2(layouts: Layouts, later: bool) -> None:
    layouts.sthv2(later=later)

    summary = prepare("sthv2", layouts.root)

    assert summary.problems == []
    assert read_classes(layouts.root / "index/classes.txt") == NAMES  # by index, not as written
    videos = "20bn-something-something-v2"
    expected = {f"{videos}/{n}.webm": NAMES[n % 4] for n in range(1, 5)}
    assert labels(layouts.root, "train") == expected
    assert (layouts.root / "index/test.csv").exists() == later
    if later:
        expected = {f"{videos}/{n}.webm": NAMES[n % 4] for n in range(9, 13)}
        assert labels(layouts.root, "test") == expected
        return
    assert any("holds no labels: its 4 videos" in note for note in summary.notes)
    (layouts.root / "something-something-v2-labels.json").write_text('{"a": Infinity}')
    with pytest.raises(PreparationError, match=r"labels\.json: "):
        prepare("sthv2", layouts.root)


def test_jester_of_the_first_release(layouts: Layouts) -> None:
    names = ["Swiping Left", "Swiping Right", "Thumb Up"]
    layouts.text("jester-v1-labels.csv", names[::-1])
    for role, ids in (("train", (1, 2, 3)), ("validation", (4, 5, 6))):
        layouts.text(f"jester-v1-{role}.csv", [f"{n};{names[n % 3]}" for n in ids])
    for number in range(1, 7):
        layouts.frames(f"20bn-jester-v1/{number}")

    assert prepare("jester", layouts.root).problems == []

    assert read_classes(layouts.root / "index/classes.txt") == names[::-1]
    assert labels(layouts.root, "val")["20bn-jester-v1/5"] == "Thumb Up"


def test_jester_with_a_header_and_a_folder_per_split(layouts: Layouts) -> None:
    """Comma-separated, with a cell that holds a comma; ids restart in every split."""
    header = "video_id,label,frames,label_id,shape,format"
    shape = '"(100, 176, 3)"'
    for split, name in (("Train", "Swiping Left"), ("Validation", "Doing other things")):
        lines = [f"{n},{name},37,{n - 1},{shape},JPEG" for n in (1,)]
        other = f"2,Thumb Up,37,2,{shape},JPEG"
        layouts.text(f"{split}.csv", [header, *lines, other])
        for number in (1, 2):
            layouts.frames(f"{split}/{number}")
    layouts.text("Test.csv", ["id,label,frames,label_id,shape,format", f"1,,37,,{shape},JPEG"])
    layouts.frames("Test/1")

    summary = prepare("jester", layouts.root)

    assert labels(layouts.root, "train") == {"Train/1": "Swiping Left", "Train/2": "Thumb Up"}
    assert labels(layouts.root, "val") == {"Validation/2": "Thumb Up"}
    assert read_classes(layouts.root / "index/classes.txt") == ["Swiping Left", "Thumb Up"]
    assert ("label", "val", "1") in problems(summary)
    assert not (layouts.root / "index/test.csv").exists()


def test_hmdb51_has_three_folds(layouts: Layouts) -> None:
    names = layouts.hmdb51("test_train_splits/deeper")

    summary = prepare("hmdb51", layouts.root)

    assert summary.problems == []  # videos with 0 are unused there, not unlisted
    marks = {1: "120", 2: "012", 3: "201"}
    for number, mark in marks.items():
        for part, one in (("train", "1"), ("val", "2")):
            expected = {
                f"hmdb51_org/{name}/{videos[mark.index(one)]}": name
                for name, videos in names.items()
            }
            assert labels(layouts.root, f"split{number}/{part}") == expected
    assert read_classes(layouts.root / "index/classes.txt") == ["brush_hair", "cartwheel"]


def test_ucf101_in_two_spellings_and_crlf(layouts: Layouts) -> None:
    layouts.ucf101()

    summary = prepare("ucf101", layouts.root)

    assert summary.problems == []
    assert labels(layouts.root, "split2/val") == {
        "UCF-101/Archery/v_Archery_g02_c01.avi": "Archery",
        "UCF-101/HandstandPushups/v_HandStandPushups_g02_c01.avi": "HandstandPushups",
    }
    assert len(index(layouts.root, "split2/train")) == 4


def test_problems_of_a_list(layouts: Layouts) -> None:
    """Each is named, and all others are indexed."""
    layouts.sthv1()
    path = layouts.root / "something-something-v1-train.csv"
    lines = path.read_text().splitlines()
    again, other, unknown = lines[0], f"2;{NAMES[0]}", "3;Juggling something"
    lines[2] = unknown
    layouts.text(path.name, [*lines, again, other, f"11;{NAMES[3]}"])
    (layouts.root / "20bn-something-something-v1/1").rename(layouts.root / "elsewhere")

    summary = prepare("sthv1", layouts.root)

    assert problems(summary) >= {
        ("duplicate", "train", "1"),
        ("missing", "train", "1"),
        ("unlisted", "", "elsewhere"),
        ("label", "train", "2"),
        ("label", "train", "3"),
        ("overlap", "val", "11"),
        ("class", "train", NAMES[1]),  # its videos are missing (1) or cannot be read (5)
    }
    kept = {path.rpartition("/")[2] for path in labels(layouts.root, "train")}
    assert kept == {"4", "6", "7", "8", "11"}
    table = index(layouts.root, "problems")
    assert [tuple(row.values()) for row in table] == [
        (one.kind, one.split, one.name, one.detail) for one in summary.problems
    ]
    unknown = next(row for row in table if row["kind"] == "label" and row["name"] == "3")
    assert "something-something-v1-train.csv:3" in unknown["detail"]
    assert "'Juggling something'" in unknown["detail"]


def test_names_that_no_list_can_hold(layouts: Layouts) -> None:
    """Cells of a csv lose their outer blanks, and Linux allows names that are not UTF-8."""
    write_clips(layouts, {"train/run/a": 1, "val/run/a": 1})
    for name in ("clip ", "clip", "two\nlines", "a\ttab"):
        layouts.frames(f"train/run/{name}")
    (layouts.root / "train/run/clip").rename(layouts.root / "train/run/\udcff")

    summary = prepare("folder", layouts.root)

    refused = ("clip ", "two\\nlines", "\\udcff")
    assert problems(summary) == {("name", "train", f"train/run/{name}") for name in refused}
    assert len(index(layouts.root, "problems")) == 3
    listed = layouts.root / "index/train.csv"
    records, _ = read_annotations(listed, root=layouts.root, classes=["run"])
    assert [Path(record.path).name for record in records] == ["a_0.mp4", "a\ttab"]

    for name in ("jump ", "front.mov", "1 2"):
        layouts.video(f"train/{name}/a.mp4")
        with pytest.raises(PreparationError, match=re.escape(f"class {name!r} cannot be written")):
            prepare("folder", layouts.root, overwrite=True)
        (layouts.root / f"train/{name}/a.mp4").unlink()


def test_lists_elsewhere_and_two_that_differ(layouts: Layouts, tmp_path: Path) -> None:
    layouts.sthv1()
    copy = Layouts(layouts.root / "old", None, None)
    copy.text("something-something-v1-train.csv", [f"1;{NAMES[1]}"])

    with pytest.raises(PreparationError, match=r"2 different files .* --annotations"):
        prepare("sthv1", layouts.root)

    copy.text("something-something-v1-labels.csv", NAMES)
    prepare("sthv1", layouts.root, annotations=layouts.root / "old")
    assert len(index(layouts.root, "train")) == 1


def test_a_video_in_several_forms(layouts: Layouts) -> None:
    """Files stand before frames of the same name; two files are ambiguous."""
    layouts.sthv2()
    layouts.frames("frames/1")

    assert prepare("sthv2", layouts.root).problems == []
    assert "20bn-something-something-v2/1.webm" in labels(layouts.root, "train")

    layouts.video("mp4/1.mp4")
    summary = prepare("sthv2", layouts.root, overwrite=True)
    assert ("ambiguous", "train", "1") in problems(summary)
    prepare("sthv2", layouts.root / "mp4", annotations=layouts.root)
    assert list(labels(layouts.root / "mp4", "train")) == ["1.mp4"]


def test_what_cannot_be_prepared(layouts: Layouts, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for dataset in (*DATASETS, "imagenet"):
        with pytest.raises(PreparationError):
            prepare(dataset, tmp_path / "empty")
    layouts.text("something-something-v1-labels.csv", NAMES)
    layouts.text("something-something-v1-train.csv", [f"1;{NAMES[1]}"])
    with pytest.raises(PreparationError, match=r"none of the 1 listed videos .* 0 video files"):
        prepare("sthv1", layouts.root)
    write_clips(layouts, {"run/p1": 1, "jump/x": 1})
    for pattern, message in (
        (r"^(p\d)_", r"does not match jump/x_0\.mp4"),
        (r"^(p\d)?", r"jump/x_0\.mp4 without its first group"),
        ("(", "not a regular expression"),
    ):
        with pytest.raises(PreparationError, match=message):
            prepare("folder", layouts.root, split=SplitSettings(group_pattern=pattern))


def write_clips(layouts: Layouts, places: dict[str, int]) -> None:
    for path, count in places.items():
        for number in range(count):
            layouts.video(f"{path}_{number}.mp4")


def test_folder_with_splits(layouts: Layouts) -> None:
    write_clips(layouts, {"train/run/a": 2, "train/jump/a": 1, "validation/run/b": 1})
    layouts.frames("validation/jump/frames_of_one")
    layouts.frames("train/run/a_0")  # those of the video beside it
    layouts.video("train/stray.mp4")

    summary = prepare("folder", layouts.root)

    assert labels(layouts.root, "val") == {
        "validation/jump/frames_of_one": "jump",
        "validation/run/b_0.mp4": "run",
    }
    assert problems(summary) == {("unlisted", "", "train/stray.mp4")}
    with pytest.raises(PreparationError, match=r"folder has splits \(train, val\)"):
        prepare("folder", layouts.root, split=SplitSettings(), overwrite=True)
    layouts.sthv2()
    with pytest.raises(PreparationError, match=r"sthv2 has splits \(train, val\)"):
        prepare("sthv2", layouts.root, split=SplitSettings())


def test_unicode_forms_of_a_folder_are_one_class(layouts: Layouts) -> None:
    write_clips(layouts, {"train/caf\u00e9/a": 1, "train/cafe\u0301/b": 1, "val/cafe\u0301/c": 1})

    assert prepare("folder", layouts.root).classes == ["caf\u00e9"]

    assert [*labels(layouts.root, "train").values()] == ["caf\u00e9"] * 2


def test_folder_is_split_by_class_and_reproducible(layouts: Layouts) -> None:
    write_clips(layouts, {"run/a": 10, "jump/a": 5})

    prepare("folder", layouts.root, split=SplitSettings(val_fraction=0.4))
    held_out = labels(layouts.root, "val")
    prepare("folder", layouts.root, split=SplitSettings(val_fraction=0.4), overwrite=True)

    assert sorted(held_out.values()) == ["jump"] * 2 + ["run"] * 4
    assert labels(layouts.root, "val") == held_out
    together = held_out | labels(layouts.root, "train")
    assert len(together) == 15
    prepare("folder", layouts.root, split=SplitSettings(0.4, seed=1), overwrite=True)
    assert labels(layouts.root, "val") != held_out


@pytest.mark.parametrize("reencoded", [False, True])
def test_splits_are_drawn_among_readable_videos(layouts: Layouts, reencoded: bool) -> None:
    write_clips(layouts, {"run/a": 2, "jump/a": 1, "walk/a": 1})
    for number in range(8):
        layouts.text(f"run/text{number}.mp4", ["no video"])
    layouts.text("jump/text.mp4", ["no video"])
    copies = CopySettings(layouts.root / "small") if reencoded else None

    summary = prepare("folder", layouts.root, copies=copies)

    assert sorted(labels(layouts.root, "train").values()) == ["jump", "run", "walk"]
    assert [*labels(layouts.root, "val").values()] == ["run"]
    causes = {(p.split, p.name): p.detail for p in summary.problems if p.kind == "class"}
    assert causes == dict.fromkeys([("val", "jump"), ("val", "walk")], "1 video only, in train")
    assert summary.description["listed"] == {"train": 3, "val": 1, "": 9}
    with pytest.raises(PreparationError, match=r"'x' does not match"):
        prepare("folder", layouts.root, split=SplitSettings(group_pattern="x"), overwrite=True)


def test_folder_keeps_groups_together(layouts: Layouts) -> None:
    """A group may reach over classes, and a class of two large groups still has one of each."""
    write_clips(
        layouts,
        {"run/p1": 2, "run/p2": 2, "run/p3": 2, "jump/p1": 1, "jump/p4": 3, "jump/p5": 2},
    )

    prepare("folder", layouts.root, split=SplitSettings(group_pattern=r"^(p\d)_"))

    groups = {
        name: {(path.split("/")[1])[:2] for path in labels(layouts.root, name)}
        for name in ("train", "val")
    }
    assert not groups["train"] & groups["val"]
    assert set(labels(layouts.root, "val").values()) == {"run", "jump"}
    assert set(labels(layouts.root, "train").values()) == {"run", "jump"}
    for name in ("train", "val"):  # for the warnings of a training, and for cross-validation
        listed = read_annotation_rows(layouts.root / f"index/{name}.csv")
        assert all(row.others["group"] == row.path.split("/")[1][:2] for row in listed)


def test_classes_that_a_flip_exchanges() -> None:
    names = [
        "Plugging something into something but pulling it right out as you remove your hand",
        "Pulling something from left to right",
        "Pulling something from right to left",
        "Pushing something from right to left",
        "Pushing something from left to right",
        "Putting something upright on the table",
        "SwipeLeft",
        "SwipeRight",
        "turn clockwise",
        "turn anti-clockwise",
        "left hand then right foot",
        "right hand then left foot",
        "right away",
    ]

    pairs = mirror_pairs(names)

    numbers = [[1, 2], [3, 4], [6, 7], [8, 9], [10, 11]]
    assert pairs == [(names[one], names[other]) for one, other in numbers]
    assert mirror_problems(names) == []
    assert swap_pairs(pairs, names) == numbers


def test_classes_without_a_single_mirror_image() -> None:
    assert mirror_problems(["left hook", "jump"]) == ["left hook"]
    two = ["turn clockwise", "turn counterclockwise", "turn anticlockwise"]
    assert mirror_pairs(two) == []
    assert mirror_problems(two) == two
