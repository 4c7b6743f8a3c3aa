"""Data sets of packages outside ffn, registered by a decorator."""

from __future__ import annotations

import pytest
from preparation_layouts import Layouts, write_videos

from ffn.datasets import (
    DATASETS,
    Entry,
    Listing,
    PreparationError,
    prepare,
    register_dataset,
)


def test_errors_of_a_reader_are_named(layouts: Layouts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DATASETS, "_entries", dict(DATASETS))
    write_videos(layouts, 1)
    listing = Listing(["run"], ["train"], [Entry("val", "a", "run", "list:1", "val/run/0.mp4")])

    register_dataset("toy")(lambda videos, lists: listing)
    with pytest.raises(PreparationError, match=r"list:1: a has the split 'val'; expected one of"):
        prepare("toy", layouts.root)

    del DATASETS._entries["toy"]
    register_dataset("toy")(lambda videos, lists: None)
    with pytest.raises(PreparationError, match=r"toy returned NoneType; expected .*Listing"):
        prepare("toy", layouts.root)
