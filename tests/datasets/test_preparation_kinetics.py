"""Kinetics as the lists are released and as downloaders leave the files."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from preparation_layouts import Layouts, labels, problems

from ffn.data import open_video, read_annotations
from ffn.datasets import PreparationError, Summary, prepare

COLUMNS = "label,youtube_id,time_start,time_end,split,is_cc"
# Ids start with a dash, end in one, hold underscores and what looks like times.
A, B, C, D = "-3B32lodo2M", "_dbcJuKJQN-", "a_000010_00", "__NrybzYzUg"


def kinds(summary: Summary) -> set[tuple[str, str, str]]:
    return {one for one in problems(summary) if one[0] != "class"}


def write_csv(layouts: Layouts, path: str, rows: Iterable[tuple], columns: str) -> None:
    layouts.text(path, [columns, *(",".join(map(str, row)) for row in rows)])


def write_lists(layouts: Layouts, folder: str = "", val: str = "val") -> None:
    train = [
        ("abseiling", A, 10, 20, "train", 0),
        ("air drumming", B, 0, 10, "train", 0),
        ("playing cards", C, 7, 17, "train", 0),
    ]
    write_csv(layouts, f"{folder}train.csv", train, COLUMNS)
    write_csv(layouts, f"{folder}{val}.csv", [("abseiling", D, 415, 425, "val", 0)], COLUMNS)
    columns = "youtube_id,time_start,time_end,split"
    write_csv(layouts, f"{folder}test.csv", [("testtesttes", 1, 11, "test")], columns)


@pytest.mark.parametrize(
    ("lists", "val", "paths"),
    [
        (  # class folders with blanks, times in the names
            "annotations/",
            "validate",
            [
                f"train/abseiling/{A}_000010_000020.mp4",
                f"train/air drumming/{B}_000000_000010.mp4",
                f"train/playing cards/{C}_000007_000017.mp4",
                f"validate/abseiling/{D}_000415_000425.mp4",
            ],
        ),
        (  # flat folders of splits
            "k400/annotations/",
            "val",
            [
                f"k400/train/{A}_000010_000020.mp4",
                f"k400/train/{B}_000000_000010.mp4",
                f"k400/train/{C}_000007_000017.mp4",
                f"k400/val/{D}_000415_000425.mp4",
            ],
        ),
        (  # names are ids; several containers, stacked suffixes, classes with underscores
            "kinetics400/kinetics_400_",
            "val",
            [
                f"train/abseiling/{A}.mkv",
                f"train/air_drumming/{B}.mp4.webm",
                f"train/playing_cards/{C}.mp4",
                f"val/abseiling/{D}_415_425.mp4",
            ],
        ),
    ],
)
def test_layouts(layouts: Layouts, lists: str, val: str, paths: list[str]) -> None:
    write_lists(layouts, lists, val)
    for path in paths:
        layouts.video(path, codec="libvpx" if path.endswith("webm") else "libx264", stream={})
    layouts.video("test/testtesttes_000001_000011.mp4")
    layouts.text("lists/other_train.csv", ["a.mp4 0", "b.mp4 1"])  # no list of Kinetics

    summary = prepare("k400", layouts.root)

    assert kinds(summary) == set()
    names = ["abseiling", "air drumming", "playing cards"]
    assert labels(layouts.root, "train") == dict(zip(paths, names, strict=False))
    assert labels(layouts.root, "val") == {paths[3]: "abseiling"}
    assert summary.classes == names
    assert any("names 3 classes; Kinetics-400 has 400" in note for note in summary.notes)
    assert any("test.csv holds no labels: its 1 videos" in note for note in summary.notes)


def test_700_takes_parts_of_one_video_and_a_replacement(layouts: Layouts) -> None:
    rows = [("abseiling", A, 0, 1, "train"), ("bowling", A, 2, 3, "train")]
    rows += [("bowling", B, 0, 10, "train")]
    write_csv(layouts, "kinetics700_2020/train.csv", rows, COLUMNS.removesuffix(",is_cc"))
    layouts.video(f"train/{A}.mp4", 20, rate=5)  # 4 s: the whole video
    layouts.video(f"train/{B}_000000_000010.mp4", 2)
    layouts.video(f"replacement/replacement_for_corrupted_k400/{B}_000000_000010.mp4", 8)

    summary = prepare("k700", layouts.root)

    assert kinds(summary) == set()
    records, _ = read_annotations(
        layouts.root / "index/train.csv", root=layouts.root, classes=summary.classes
    )
    assert [(record.start, record.end) for record in records] == [(0, 1), (2, 3), (None, None)]
    assert records[2].frames == 8
    assert open_video(records[1].path).between(2, 3) == range(10, 15)


def test_files_that_tell_no_time_and_disagree_with_the_list(layouts: Layouts) -> None:
    rows = [("abseiling", A, 0, 1, "train"), ("bowling", A, 5, 6, "train")]
    rows += [("bowling", B, 6, 7, "train"), ("bowling", D, 0, 10, "train")]
    write_csv(layouts, "train.csv", rows, COLUMNS.removesuffix(",is_cc"))
    layouts.video(f"{A}.mp4", 5, rate=5)  # one of two parts, which one is unknown
    layouts.video(f"{B}.mp4", 16, rate=5)  # 3.2 s: longer than the part, shorter than its end
    layouts.video(f"bowling/{D}.mp4")
    layouts.video(f"old/bowling/{D}.mp4")

    summary = prepare("k600", layouts.root)

    assert kinds(summary) == {
        ("times", "train", f"{A}_000005_000006"),
        ("times", "train", f"{B}_000006_000007"),
        ("ambiguous", "train", f"{D}_000000_000010"),
        ("missing", "train", f"{D}_000000_000010"),
    }


def test_broken_rows(layouts: Layouts) -> None:
    for time in ("ten", "inf"):
        write_csv(layouts, "train.csv", [("abseiling", A, time, 20, "train", 0)], COLUMNS)
        with pytest.raises(PreparationError, match=rf"train\.csv:2: times '{time}' … '20' are not"):
            prepare("k400", layouts.root)
    layouts.text("train.csv", [COLUMNS, f"abseiling,{A},10"])
    with pytest.raises(PreparationError, match=r"train\.csv:2: 3 cells under 6 columns"):
        prepare("k400", layouts.root)
