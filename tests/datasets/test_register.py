"""Data sets of packages outside ffn, registered by a decorator."""

from __future__ import annotations

import pytest
from preparation_layouts import Layouts, index, write_videos

from ffn.datasets import (
    DATASETS,
    Entry,
    Listing,
    PreparationError,
    SplitSettings,
    prepare,
    register_dataset,
)


@pytest.fixture
def empty_name(monkeypatch: pytest.MonkeyPatch) -> str:
    """A name that is free again after the test."""
    monkeypatch.setitem(DATASETS._entries, "toy", None)
    del DATASETS._entries["toy"]
    return "toy"


def test_a_listing_without_splits_is_split_at_random(layouts: Layouts, empty_name: str) -> None:
    for number in range(10):
        layouts.video(f"clips/{number}.mp4")

    @register_dataset(empty_name)
    def read(videos, lists):
        names = [f"clips/{number}.mp4" for number in range(10)]
        return Listing(["run"], [], [Entry("", name, "run", "here", name) for name in names])

    summary = prepare(empty_name, layouts.root, split=SplitSettings(val_fraction=0.3))

    assert summary.problems == []
    assert [split.indexed for split in summary.splits] == [7, 3]
    paths = [row["path"] for name in ("train", "val") for row in index(layouts.root, name)]
    assert sorted(paths) == [f"clips/{number}.mp4" for number in range(10)]


def test_errors_of_a_reader_are_named(layouts: Layouts, empty_name: str) -> None:
    write_videos(layouts, 1)
    listing = Listing(["run"], ["train"], [Entry("val", "a", "run", "list:1", "val/run/0.mp4")])

    register_dataset(empty_name)(lambda videos, lists: listing)
    with pytest.raises(PreparationError, match=r"list:1: a has the split 'val'; expected one of"):
        prepare(empty_name, layouts.root)

    del DATASETS._entries[empty_name]
    register_dataset(empty_name)(lambda videos, lists: None)
    with pytest.raises(PreparationError, match=r"toy returned NoneType; expected .*Listing"):
        prepare(empty_name, layouts.root)
