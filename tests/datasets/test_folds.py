"""Folds of cross-validation: groups stay together, classes are even, lists are complete."""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ffn.data import read_annotations
from ffn.datasets.folds import assign_folds, read_grouped_clips, write_fold_lists


def random_clips(seed: int) -> tuple[list[int], list[str], int]:
    """Labels and groups of random sizes, some with several classes, and a number of folds."""
    draws = np.random.default_rng(seed)
    folds, classes = int(draws.integers(2, 6)), int(draws.integers(2, 7))
    labels, groups = [], []
    for group in range(int(draws.integers(4 * classes, 60))):
        first = group % classes
        size = int(draws.integers(1, 12))
        mixed = draws.random(size) < 0.3
        labels += np.where(mixed, draws.integers(0, classes, size), first).tolist()
        groups += [f"scene {group}"] * size
    return labels, groups, folds


@pytest.mark.parametrize("seed", range(25))
def test_groups_stay_together_and_every_training_part_has_all_classes(seed: int) -> None:
    labels, groups, folds = random_clips(seed)

    found = assign_folds(labels, groups, folds, seed=seed)

    assert set(found) == set(range(folds))
    assert len(set(zip(groups, found, strict=True))) == len(set(groups))
    for fold in range(folds):
        rest = {c for c, own in zip(labels, found, strict=True) if own != fold}
        assert rest == set(labels)


@pytest.mark.parametrize("seed", range(5))
def test_classes_of_single_clips_differ_by_one_clip_at_most(seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 4, 83).tolist()

    found = assign_folds(labels, [str(i) for i in range(83)], 5, seed=seed)

    for label in range(4):
        own = [fold for c, fold in zip(labels, found, strict=True) if c == label]
        sizes = [own.count(fold) for fold in range(5)]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_folds_are_more_even_than_most_assignments(seed: int) -> None:
    """All 3^7 assignments of seven groups, by the mean deviation of the shares of the classes."""
    draws = np.random.default_rng(seed)
    counts = draws.integers(0, 8, (7, 3)) + np.eye(7, 3, dtype=int)  # clips per group and class
    labels = [c for row in counts for c in range(3) for _ in range(row[c])]
    groups = [str(g) for g, row in enumerate(counts) for _ in range(row.sum())]

    def unevenness(fold_of_group: tuple[int, ...]) -> float:
        shares = np.stack([counts[np.array(fold_of_group) == f].sum(0) for f in range(3)])
        return (shares / counts.sum(0)).std(0).mean()

    found = dict(zip(groups, assign_folds(labels, groups, 3, seed=seed), strict=True))
    own = unevenness(tuple(found[str(g)] for g in range(7)))
    every = [unevenness(folds) for folds in itertools.product(range(3), repeat=7)]

    assert own <= np.quantile(every, 0.1)


@pytest.mark.parametrize("seed", range(5))
def test_folds_depend_on_clips_and_seed_only(seed: int) -> None:
    labels, groups, folds = random_clips(seed)
    order = np.random.default_rng(seed).permutation(len(labels)).tolist()

    found = assign_folds(labels, groups, folds, seed=3)
    shuffled = assign_folds([labels[i] for i in order], [groups[i] for i in order], folds, seed=3)

    assert shuffled == [found[i] for i in order]


def test_the_seed_changes_the_folds() -> None:
    labels, groups = [0, 1] * 20, [str(i // 2) for i in range(40)]
    found = {tuple(assign_folds(labels, groups, 4, seed=seed)) for seed in range(5)}
    assert len(found) == 5


def test_equal_groups_are_dealt_in_the_order_of_their_hashes() -> None:
    """Every version and machine makes the same folds."""
    labels, groups = [0, 1, 0, 1, 1, 0, 0, 1], list("aabbccdd")
    order = sorted("abcd", key=lambda name: hashlib.sha256(f"2/{name}".encode()).hexdigest())
    assert order == ["c", "a", "b", "d"]
    assert assign_folds(labels, groups, 2, seed=2) == [1, 1, 0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("labels", "groups", "folds", "message"),
    [
        ([0, 1], "ab", 1, "1 folds; expected at least 2"),
        ([0, 1, 0, 1], "aabb", 3, "2 groups for 3 folds; each fold needs at least one"),
        ([0, 0, 0], "abc", 2, "all clips have the class run; expected several"),
        ([0, 1, 0, 0, 0], "aabbc", 2, r"1 of 2 classes have clips of one group only: 'sit' \(a\)"),
        ([0, 1, 2, 3], "abca", 3, r"fewer clips than there are folds \(at most 1 for 3\)"),
    ],
)
def test_unusable_clips_are_refused(
    labels: list[int], groups: str, folds: int, message: str
) -> None:
    classes = ["run", "sit", "stand", "turn"]
    with pytest.raises(ValueError, match=message):
        assign_folds(labels, list(groups), folds, classes=classes)


def test_a_class_in_one_fold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffn.datasets.folds._stratified", lambda *_: [0, 0, 1, 0])
    with pytest.raises(ValueError, match=r"all 2 groups of class 'sit' fell into fold 0.*another"):
        assign_folds([0, 1, 0, 1], list("abcd"), 2, classes=["run", "sit"])


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.model_selection", None)
    with pytest.raises(ImportError, match=r"pip install 'frame-flexible\[crossval\]'"):
        assign_folds([0, 1, 0, 1], list("aabb"), 2)


TABLE = """\
Set,path,label,Person,frames,fps,start,end
x,b.mp4,sit,ann,20,30/1,,
x,a.mp4,run,bob,20,30/1,1.5,2.5
y,c.mp4,turn,bob,20,30/1,,
x,a.mp4,sit,bob,20,30/1,0.5,1.5
z,d.mp4,run,ann,20,30/1,,
"""


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "clips.csv") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_clips_are_filtered_and_sorted(write) -> None:
    clips = read_grouped_clips(
        write(TABLE), root="videos", group="person", where={"set": ["x", "z"]}
    )

    assert clips.classes == ["run", "sit"]
    assert [(r.path, r.label, r.start) for r in clips.records] == [
        ("videos/a.mp4", 1, 0.5),
        ("videos/a.mp4", 0, 1.5),
        ("videos/b.mp4", 1, None),
        ("videos/d.mp4", 0, None),
    ]
    assert clips.groups == ["bob", "bob", "ann", "ann"]
    assert clips.labels == [1, 0, 1, 0]


def test_without_a_column_each_file_is_a_group(write) -> None:
    clips = read_grouped_clips(write(TABLE), root="videos", where={"set": ["x"]})
    assert clips.groups == ["a.mp4", "a.mp4", "b.mp4"]


def test_classes_may_come_from_a_file(write) -> None:
    names = write("turn\nsit\nrun\n", "classes.txt")
    clips = read_grouped_clips(write(TABLE), root="", where={"label": ["run"]}, classes=names)
    assert clips.classes == ["turn", "sit", "run"]
    assert clips.labels == [2, 2]


def test_the_fingerprint_changes_with_every_part(write) -> None:
    def fingerprint(text: str = TABLE, folds: tuple[int, ...] = (0, 0, 1, 1, 0)) -> str:
        clips = read_grouped_clips(write(text), root="any", group="Person")
        return clips.fingerprint(folds)

    first, *rows = TABLE.splitlines(keepends=True)
    assert fingerprint() == fingerprint("".join([first, *reversed(rows)]))
    changed = [
        TABLE.replace("d.mp4", "e.mp4"),
        TABLE.replace("d.mp4,run,ann", "d.mp4,sit,ann"),
        TABLE.replace("d.mp4,run,ann", "d.mp4,run,bob"),
        TABLE.replace("2.5", "2.6"),
    ]
    found = {fingerprint(), fingerprint(folds=(0, 0, 1, 1, 1)), *map(fingerprint, changed)}
    assert len(found) == 6


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (TABLE, {"group": "persons"}, r"csv:1: no column 'persons'.*did you mean person\?"),
        (TABLE, {"where": {"set": ["w"]}}, "no row with set=w; the values of set .* are x, y, z"),
        (TABLE.replace("ann", ""), {"group": "person"}, r"csv:2: the person is empty"),
        (TABLE + "x,b.mp4,run,ann,1,1,,\n", {}, r"csv:7: b.mp4 is listed before, at .*csv:2"),
        (
            TABLE + "x,b.mp4,run,bob,1,1,3,4\n",
            {"group": "person"},
            r"csv:7: b.mp4 has the person 'bob', and 'ann' at .*csv:2",
        ),
        (TABLE.replace("label", "lable"), {}, "no column for the label"),
        (TABLE.replace("1.5,2.5", "2.5,1.5"), {}, "start 2.5 s is not before end 1.5 s"),
    ],
)
def test_unusable_annotations_are_refused(write, text: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_grouped_clips(write(text), root="", **options)


def test_a_text_list_has_no_columns(write) -> None:
    with pytest.raises(ValueError, match="is not a csv and has no columns person"):
        read_grouped_clips(write("a.mp4 0\n", "clips.txt"), root="", group="person")


def test_lists_of_a_fold_are_its_clips_and_the_others(write, tmp_path: Path) -> None:
    clips = read_grouped_clips(write(TABLE), root=tmp_path, group="person")

    write_fold_lists(clips, [0, 0, 1, 2, 1], tmp_path / "folds")

    for fold, size in enumerate([2, 2, 1]):
        lists = tmp_path / "folds" / f"fold_{fold}"
        train, test = (
            read_annotations(lists / name, root=tmp_path, classes=clips.classes)[0]
            for name in ("train.csv", "test.csv")
        )
        assert len(test) == size
        assert Counter(train + test) == Counter(clips.records)
        assert test == [r for r, f in zip(clips.records, [0, 0, 1, 2, 1], strict=True) if f == fold]
