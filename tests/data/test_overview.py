"""What is printed about the lists of a training run, and which lists it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffn.data import check_splits, describe_splits, read_splits, split_warnings


def splits(folder: Path, train: str, val: str, **more: object):
    (folder / "train.csv").write_text(train)
    (folder / "val.csv").write_text(val)
    return read_splits(folder, train="train.csv", val="val.csv", **more)


TRAIN = "path,label,frames,width,height,group\n" + "".join(
    f"{name}.mp4,{label},{frames},{side},240,{group}\n"
    for name, label, frames, side, group in [
        ("a", "run", 10, 320, "anna"),
        ("b", "run", 30, 100, "anna"),
        ("c", "jump", 20, 320, "ben"),
        ("d", "run", "", "", ""),
        ("e", "sit", 40, 320, "ben"),
    ]
)


def test_description_by_hand(tmp_path: Path) -> None:
    found = splits(tmp_path, TRAIN, "path,label,frames\nf.mp4,run,50\ng.mp4,jump,60\n")

    assert describe_splits(found) == [
        "training videos per class: least 1 (jump), median 1, most 3 (run)",
        "validation videos per class: 1 in each of 2 classes",
    ]
    assert [*split_warnings(found)] == ["1 of 3 classes have no validation video (sit)"]


def test_shared_videos_and_groups_are_warned_of(tmp_path: Path) -> None:
    val = "path,label,group\n./a.mp4,run,anna\nx.mp4,jump,ben\ny.mp4,sit,cleo\nz.mp4,run,\n"

    shared, group = split_warnings(splits(tmp_path, TRAIN, val))

    assert shared.startswith(
        "1 of 4 validation videos are files of the training list too (./a.mp4);"
    )
    assert group.startswith("1 of 4 validation videos have a group of the training list (ben);")


def test_parts_of_one_file_in_both_lists(tmp_path: Path) -> None:
    train = "path,label,start,end\na.mp4,run,0,2\na.mp4,jump,2,4\n"
    val = "path,label,start,end\na.mp4,run,4,6\na.mp4,jump,6,8\n"
    found = splits(tmp_path, train, val)

    check_splits(found)
    (shared,) = split_warnings(found)
    assert shared.startswith("2 of 2 validation videos are files of the training list too (a.mp4)")


def test_videos_listed_twice_and_empty_classes(tmp_path: Path) -> None:
    train = "path,label\na.mp4,0\nb.mp4,1\na.mp4,0\nb.mp4,0\n"
    (tmp_path / "names.txt").write_text("run\njump\nsit\n")
    found = splits(tmp_path, train, "path,label\nc.mp4,1\nd.mp4,0\n", class_file="names.txt")

    assert [text.split(" (")[0] for text in split_warnings(found)] == [
        "2 training videos are listed again, 1 of them with another label",
        "1 of 3 classes have no training video",
        "1 of 3 classes have no validation video",
    ]


@pytest.mark.parametrize(
    ("val", "message"),
    [
        ("train.csv", "are the same"),
        ("copy.csv", r"all 2 validation videos of .*copy\.csv are training videos of"),
        ("part.csv", "all 1 validation videos"),
    ],
)
def test_validation_on_the_training_videos_is_refused(
    val: str, message: str, tmp_path: Path
) -> None:
    text = "path,label\na.mp4,run\nb.mp4,jump\n"
    (tmp_path / "train.csv").write_text(text)
    (tmp_path / "copy.csv").write_text(text.replace("a.mp4", "./a.mp4"))
    (tmp_path / "part.csv").write_text("path,label\nb.mp4,jump\n")

    found = read_splits(tmp_path, train="train.csv", val=val)

    with pytest.raises(ValueError, match=message):
        check_splits(found)


def test_training_videos_with_another_spelling_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "root").mkdir()
    train = "path,label\nrun/0.mp4,run\njump/0.mp4,jump\n"
    run, jump = f"{tmp_path}/root/run/0.mp4", "jump/../jump/./0.mp4"
    found = splits(Path("root"), train, f"path,label\n{run},run\n{jump},jump\n")
    with pytest.raises(ValueError, match="all 2 validation videos"):
        check_splits(found)


def test_a_single_class_is_refused(tmp_path: Path) -> None:
    found = splits(tmp_path, "path,label\na.mp4,run\n", "path,label\nb.mp4,run\n")

    with pytest.raises(ValueError, match=r"train\.csv has the single class 'run'; training needs"):
        check_splits(found)
