"""Damaged files, existing indexes, and files that are no videos."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from preparation_layouts import Layouts, index, problems, write_damaged, write_videos

from ffn.data import read_annotations
from ffn.data.suffixes import videos_in
from ffn.datasets import (
    DATASETS,
    Entry,
    Inventory,
    Listing,
    PreparationError,
    prepare,
    read_rows,
    register_dataset,
)


def test_unreadable_files_are_named_with_the_cause(layouts: Layouts) -> None:
    write_videos(layouts, 2)
    (layouts.root / "train/run/empty.mp4").touch()
    layouts.text("train/run/page.mp4", ["<html>not found</html>"])

    summary = prepare("folder", layouts.root)

    causes = {one.name: one.detail for one in summary.problems if one.kind == "unreadable"}
    assert "0 bytes" in causes["train/run/empty.mp4"]
    assert "not a video" in causes["train/run/page.mp4"]
    assert [row["path"] for row in index(layouts.root)] == ["train/run/0.mp4", "train/run/1.mp4"]


def test_verify_finds_damage_that_the_packets_hide(layouts: Layouts) -> None:
    write_videos(layouts, 1)
    write_damaged(layouts, "train/run/broken.mp4")

    trusted = prepare("folder", layouts.root)
    verified = prepare("folder", layouts.root, verify=True, overwrite=True)

    assert trusted.problems == []
    assert problems(verified) == {("unreadable", "train", "train/run/broken.mp4")}
    assert verified.description["verified"]


def test_an_index_is_not_overwritten_by_default(layouts: Layouts) -> None:
    write_videos(layouts)
    prepare("folder", layouts.root)
    before = (layouts.root / "index/train.csv").read_text()

    with pytest.raises(FileExistsError, match="holds an index already"):
        prepare("folder", layouts.root)
    layouts.video("train/run/new.mp4")
    prepare("folder", layouts.root, overwrite=True)

    assert len(index(layouts.root)) == len(before.splitlines())  # with the header, one less
    for path in (layouts.root / "val").rglob("*.mp4"):
        path.unlink()
    prepare("folder", layouts.root, overwrite=True)
    assert not (layouts.root / "index/val.csv").exists()

    files = sorted(layouts.root.rglob("*"))
    with pytest.raises(PreparationError, match=r"the index, .*train, holds videos \(run/0\.mp4\)"):
        prepare("folder", layouts.root, output=layouts.root / "train")
    assert sorted(layouts.root.rglob("*")) == files


@patch.dict(DATASETS)
def test_a_registered_data_set_whose_lists_are_never_replaced(layouts: Layouts) -> None:
    """The data set of CONTRIBUTING.md, with its index in the folder of the lists."""
    layouts.video("a.mp4")
    for split in ("train", "val"):
        layouts.text(f"lists/{split}.csv", ["a.mp4,run"])

    @register_dataset("mine")
    def mine(videos: Inventory, lists: Inventory) -> Listing:
        listing = Listing(["run"], ["train", "val"])
        for split in listing.splits:
            for where, (path, label) in read_rows(lists.root / f"{split}.csv", ","):
                listing.entries.append(Entry(split, path, label, where, path))
        return listing

    lists = layouts.root / "lists"
    with pytest.raises(FileExistsError, match="holds other files"):
        prepare("mine", layouts.root, output=lists, annotations=lists, overwrite=True)
    assert (lists / "train.csv").read_text() == "a.mp4,run\n"
    prepare("mine", layouts.root, annotations=lists)
    assert [row["path"] for row in index(layouts.root)] == ["a.mp4"]

    listing = Listing(["run"], ["train"], [Entry("val", "a", "run", "list:1", "a.mp4")])
    for wrong, message in ((listing, "has the split 'val'"), (None, "mine returned NoneType")):
        DATASETS["mine"] = lambda videos, lists, wrong=wrong: wrong
        with pytest.raises(PreparationError, match=message):
            prepare("mine", layouts.root, overwrite=True)


def test_figures_of_tools_and_files_of_systems_are_no_videos(layouts: Layouts) -> None:
    write_videos(layouts, 1)
    layouts.frames("train/run/frames")
    layouts.frames("train/run/0")  # of the video 0.mp4
    junk = ("__MACOSX", ".AppleDouble", "@eaDir", "$Recycle.Bin", "System Volume Information")
    for path in (f"{above}/{name}" for above in ("run", "train", "train/run") for name in junk):
        layouts.video(f"{path}/0.mp4")
        layouts.frames(f"{path}/frames")
    for name in ("._0.mp4", "Thumbs.db", ".DS_Store", "desktop.ini"):
        layouts.text(f"train/run/{name}", [])
    layouts.text("train/run/report.csv", [])
    prepare("folder", layouts.root)
    classes = (layouts.root / "index/classes.txt").read_text()
    paths = ["train/run/0.mp4", "train/run/frames"]
    assert [row["path"] for row in index(layouts.root)] == paths
    assert classes == "run\n"
    records, _ = read_annotations(layouts.root / "train")
    assert [record.path for record in records] == [str(layouts.root / path) for path in paths]
    assert [*map(str, videos_in(layouts.root / "train/run"))] == [record.path for record in records]
    layouts.text("runs/test/results.png", [])
    layouts.text("runs/a/log.jsonl", [])
    layouts.text("runs/a/network.confusion.png", [])

    prepare("folder", layouts.root, overwrite=True)

    assert (layouts.root / "index/classes.txt").read_text() == classes
