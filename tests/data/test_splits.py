"""The lists of a data set: classes, fingerprint, description, and what is refused."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from ffn.data import Record, Splits, check_splits, describe_splits, read_splits, split_warnings

HEADER = "path,label\n"
TRAIN = HEADER + "x.mp4,b\ny.mp4,a\nz.mp4,b\n"
GROUPS = (
    "path,label,group\na.mp4,run,anna\nb.mp4,run,anna\nc.mp4,jump,ben\nd.mp4,run,\ne.mp4,sit,\n"
)


def splits(
    folder: Path, train: str = TRAIN, val: str = HEADER + "v.mp4,a\n", **more: object
) -> Splits:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.csv").write_text(train)
    (folder / "val.csv").write_text(val)
    return read_splits(folder, train="train.csv", val="val.csv", **more)


def test_classes_come_from_the_list_a_file_or_a_checkpoint(tmp_path: Path) -> None:
    found = splits(tmp_path)
    assert (found.classes, [record.label for record in found.train]) == (["a", "b"], [1, 0, 1])
    assert [Path(record.path) for record in found.val] == [tmp_path / "v.mp4"]
    tested = splits(tmp_path, with_train=False)
    assert (tested.train, tested.classes, tested.val[0].label) == ([], ["a", "b"], 0)

    (tmp_path / "names.txt").write_text("b\na\n")
    assert splits(tmp_path, class_file="names.txt").classes == ["b", "a"]
    given = splits(tmp_path, class_file="names.txt", classes=["c", "b", "a"], with_train=False)
    assert (given.classes, [record.label for record in given.val]) == (["c", "b", "a"], [2])
    with pytest.raises(ValueError, match="c"):
        splits(tmp_path, TRAIN + "u.mp4,c\n", classes=["a", "b"])


def test_lists_with_and_without_labels_are_read_without(tmp_path: Path) -> None:
    for train in (
        TRAIN,
        "path\nx.mp4\ny.mp4\nz.mp4\n",
        "path,labels\nx.mp4,a|b\ny.mp4,\nz.mp4,a\n",
    ):
        found = splits(tmp_path, train, "file,text\nv.mp4,a word\n", labelled=False)
        check_splits(found)
        assert [Path(one.path).name for one in found.train] == ["x.mp4", "y.mp4", "z.mp4"]
        assert {one.label for one in [*found.train, *found.val]} == {0}
        assert (found.classes, found.multi_label) == (["unlabelled"], False)
    (tmp_path / "train.txt").write_text("x.mp4 3\n")
    (tmp_path / "val.txt").write_text("v.mp4\n")
    found = read_splits(tmp_path, train="train.txt", val="val.txt", labelled=False)
    assert [Path(one.path).name for one in (*found.train, *found.val)] == ["x.mp4", "v.mp4"]


def test_fingerprint_by_hand(tmp_path: Path) -> None:
    expected = hashlib.sha256(b"a\nb\nx.mp4 1\ny.mp4 0\nz.mp4 1\nv.mp4 0").hexdigest()
    counts = {"train_videos": 3, "val_videos": 1, "classes": 2}
    assert splits(tmp_path / "one").fingerprint() == {**counts, "sha256": expected}
    assert splits(tmp_path / "other/place").fingerprint()["sha256"] == expected
    changed = splits(tmp_path / "changed", TRAIN.replace("z.mp4,b", "z.mp4,a"))
    assert changed.fingerprint()["sha256"] != expected


def test_description_by_hand(tmp_path: Path) -> None:
    found = splits(tmp_path, GROUPS, HEADER + "f.mp4,run\ng.mp4,jump\n")
    assert describe_splits(found) == [
        "training videos per class: least 1 (jump), median 1, most 3 (run)",
        "validation videos per class: least 1 (jump), median 1, most 1 (run)",
    ]
    assert [*split_warnings(found)] == ["1 of 3 classes have no validation video (sit)"]


def test_shared_videos_and_groups_repeats_and_empty_classes_are_warned_of(tmp_path: Path) -> None:
    val = "path,label,group\n./a.mp4,run,anna\nx.mp4,jump,ben\ny.mp4,sit,cleo\nz.mp4,run,\n"
    shared, group = split_warnings(splits(tmp_path, GROUPS, val))
    assert shared.startswith("1 of 4 validation videos are files of the training list")
    assert group.startswith(
        "2 of 4 validation videos have a group of the training list (anna, ben)"
    )

    header = "path,label,start,end\n"  # parts of one file in both lists
    train = header + "a.mp4,run,0,2\na.mp4,jump,2,4\n"
    found = splits(tmp_path, train, header + "a.mp4,run,4,6\na.mp4,jump,6,8\n")
    check_splits(found)
    (shared,) = split_warnings(found)
    assert shared.startswith("2 of 2 validation videos are files of the training list")

    train = HEADER + "a.mp4,0\nb.mp4,1\na.mp4,0\nb.mp4,0\n"
    (tmp_path / "names.txt").write_text("run\njump\nsit\n")
    val = HEADER + "c.mp4,1\nd.mp4,0\n"
    assert [
        text.split(" (")[0]
        for text in split_warnings(splits(tmp_path, train, val, class_file="names.txt"))
    ] == [
        "2 training videos are listed again",
        "1 of 3 classes have no training video",
        "1 of 3 classes have no validation video",
    ]


def test_what_cannot_be_trained_or_validated_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train = HEADER + "run/0.mp4,run\njump/0.mp4,jump\n"
    splits(Path("root"), train, HEADER + "v.mp4,run\n")
    same = read_splits("root", train="train.csv", val="train.csv")
    spelled = f"{tmp_path}/root/run/0.mp4,run\njump/../jump/./0.mp4,jump\n"
    for found in (
        same,
        splits(Path("root"), train, HEADER + spelled),  # the same files
        splits(Path("root"), train, HEADER + "jump/0.mp4,jump\n"),
        splits(Path("root"), HEADER + "a.mp4,run\n", HEADER + "b.mp4,run\n"),  # a single class
    ):
        with pytest.raises(ValueError, match=r"train\.csv"):
            check_splits(found)


def test_lists_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "several.csv").write_text("path,labels\na.mp4,x|y\nb.mp4,x\n")
    (tmp_path / "one.csv").write_text(HEADER + "c.mp4,x\nd.mp4,y\n")
    for train, val, multi_label, wrong in (
        ("several.csv", "several.csv", False, "several"),
        ("one.csv", "several.csv", False, "several"),
        ("several.csv", "one.csv", True, "one"),
    ):
        with pytest.raises(ValueError, match=rf"{wrong}\.csv has .*data\.labels="):
            read_splits(tmp_path, train=train, val=val, multi_label=multi_label)
    found = read_splits(tmp_path, train="several.csv", val="several.csv", multi_label=True)
    assert found.multi_label
    check_splits(replace(found, val=[Record("c.mp4", (0,))], classes=["x"]))  # present or absent
    with pytest.raises(ValueError, match="has a label"):
        check_splits(replace(found, val=[Record("c.mp4", ())]))
