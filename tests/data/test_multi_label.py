"""Lists with several labels per video: their grammar, errors, records, batches and run lists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ffn.data import (
    Preprocessing,
    Record,
    TrainTransform,
    VideoDataset,
    check_splits,
    collate_eval,
    label_text,
    read_annotations,
    read_splits,
)

SOURCES = (Path("no/train.csv"), Path("no/val.csv"))


def write(folder: Path, name: str, *lines: str) -> Path:
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


def labels(path: Path, **given: object) -> tuple[list[tuple[int, ...]], list[str]]:
    records, classes = read_annotations(path, **given)
    return [record.label for record in records], classes


def test_cells_with_labels(tmp_path: Path) -> None:
    for lines, expected, classes in (
        (["a.mp4,push|pull", "b.mp4,", "c.mp4,pull"], [(0, 1), (), (0,)], ["pull", "push"]),
        (["a.mp4, push | pull ", "b.mp4,push"], [(0, 1), (1,)], ["pull", "push"]),
        (['a.mp4,"push|pull, hard"'], [(0, 1)], ["pull, hard", "push"]),
        (["a.mp4,2|0", "b.mp4,1"], [(0, 2), (1,)], ["0", "1", "2"]),
    ):
        assert labels(write(tmp_path, "l.csv", "path,labels", *lines)) == (expected, classes)
    # In a list with one label per video, a bar is part of the name.
    assert labels(write(tmp_path, "l.csv", "path,label", "a,x|y"))[1] == ["x|y"]


def test_errors_name_the_line(tmp_path: Path) -> None:
    for line, lines in (
        (3, ["path,labels", "a,x", "b,x|q"]),
        (2, ["path,labels", "a,x|y|x"]),
        (2, ["path,labels", "a,1|01"]),
        (2, ["path,labels", "a,0|2"]),
        (3, ["path,labels", "", "a,x||y"]),
        (2, ["path,labels", "a,x|"]),
        (1, ["path,labels,label", "a,x,x"]),
        (2, ["path,labels", "a,x|b.mp4"]),
        (2, ["path,labels", "a,0 1"]),
        (1, ["labels,frames", "x,1"]),
        (1, ["path,frames", "x,1"]),
    ):
        with pytest.raises(ValueError, match=rf"l\.csv:{line}: "):
            read_annotations(write(tmp_path, "l.csv", *lines), classes=["x", "y"])
    for lines in (["a,x|y", "b,x|1"], ["a,0|2", "b,"]):
        with pytest.raises(ValueError, match=r"l\.csv"):
            read_annotations(write(tmp_path, "l.csv", "path,labels", *lines))


def test_lists_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "several.csv", "path,labels", "a.mp4,x|y", "b.mp4,x")
    write(tmp_path, "one.csv", "path,label", "c.mp4,x", "d.mp4,y")
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


def test_batches_have_a_row_of_ones_and_zeros(write_video, tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4")
    records = [Record(path, (0, 2)), Record(path, ()), Record("missing.mp4", (1,))]
    options = {"views": [2], "preprocessing": Preprocessing(crop=16, resize=20)}
    with pytest.raises(ValueError, match="several labels per video; give num_classes"):
        VideoDataset(records, **options)

    data = VideoDataset(records, num_classes=3, on_error="skip", **options)
    batch = collate_eval([data[i] for i in range(3)])

    assert batch["label"].tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert batch["label"].dtype == torch.float32
    assert batch["ok"].tolist() == [True, True, False]


def test_a_flip_exchanges_each_of_several_labels() -> None:
    transform = TrainTransform(
        Preprocessing(crop=8, resize=8), flip="swap", flip_pairs=[[0, 3]], scales=[1.0]
    )
    frames = torch.zeros(1, 8, 8, 3, dtype=torch.uint8)
    frames[:, :, :4] = 255
    found = set()
    for seed in range(20):
        x, label = transform(frames, (0, 1), np.random.default_rng(seed))
        found.add((bool(x[0, 0, 0, 0]), label))  # whether the left side is bright
    assert found == {(True, (0, 1)), (False, (1, 3))}


def test_text_of_a_label() -> None:
    assert [label_text(3), label_text((0, 2)), label_text(())] == ["3", "0|2", ""]
    assert label_text((0, 2), ["x", "y", "z"]) == "x|z"
