"""The training and validation lists of a data set, and their fingerprint."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from ffn.data import Splits, read_splits


def write(folder: Path, labels: tuple[str, ...] = ("b", "a", "b")) -> Path:
    """Lists of three training videos and one validation video."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"{name}.mp4,{label}\n" for name, label in zip("xyz", labels, strict=True))
    (folder / "train.csv").write_text(f"path,label\n{rows}")
    (folder / "val.csv").write_text("path,label\nv.mp4,a\n")
    return folder


def read(root: Path, **more: object) -> Splits:
    return read_splits(root, train="train.csv", val="val.csv", **more)


def test_lists_are_read_with_paths_below_the_root(tmp_path: Path) -> None:
    splits = read(write(tmp_path))

    assert splits.classes == ["a", "b"]
    assert [record.label for record in splits.train] == [1, 0, 1]
    assert [Path(record.path) for record in splits.val] == [tmp_path / "v.mp4"]


def test_class_names_of_a_file_or_of_a_checkpoint(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "names.txt").write_text("b\na\n")

    assert read(tmp_path, class_file="names.txt").classes == ["b", "a"]
    given = read(tmp_path, class_file="names.txt", classes=["c", "b", "a"], with_train=False)
    assert given.classes == ["c", "b", "a"]
    assert given.train == []
    assert [record.label for record in given.val] == [2]
    with pytest.raises(ValueError, match="c"):
        read(write(tmp_path, ("b", "a", "c")), classes=["a", "b"])


def test_training_list_gives_the_classes_of_a_test(tmp_path: Path) -> None:
    splits = read(write(tmp_path), with_train=False)

    assert (splits.train, splits.classes, splits.val[0].label) == ([], ["a", "b"], 0)


def test_fingerprint_by_hand(tmp_path: Path) -> None:
    expected = hashlib.sha256(b"a\nb\nx.mp4 1\ny.mp4 0\nz.mp4 1\nv.mp4 0").hexdigest()

    assert read(write(tmp_path / "one")).fingerprint() == {
        "train_videos": 3,
        "val_videos": 1,
        "classes": 2,
        "sha256": expected,
    }
    assert read(write(tmp_path / "other/place")).fingerprint()["sha256"] == expected
    changed = read(write(tmp_path / "changed", ("b", "a", "a")))
    assert changed.fingerprint()["sha256"] != expected


@pytest.mark.parametrize("place", ["index", "index/split1"])
def test_fingerprint_of_a_prepared_data_set(tmp_path: Path, place: str) -> None:
    write(tmp_path / place)
    (tmp_path / "index/dataset.json").write_text(json.dumps({"fingerprint": {"counts": [1, 2]}}))

    splits = read_splits(tmp_path, train=f"{place}/train.csv", val=f"{place}/val.csv")

    assert splits.fingerprint()["prepared"] == {"counts": [1, 2]}


def test_invalid_description_is_named(tmp_path: Path) -> None:
    (write(tmp_path) / "dataset.json").write_text("{")

    with pytest.raises(ValueError, match=r"dataset\.json does not describe a data set"):
        read(tmp_path)
