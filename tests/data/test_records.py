"""Records in shared memory."""

from __future__ import annotations

import pytest

from ffn.data import Record
from ffn.data.records import SharedRecords

RECORDS = [
    Record("/videos/a.mp4", 0),
    Record("/videos/ü ñ.mp4", 7, 12),
    Record("", 1, 3, 0.0, 4.25),
    Record("/videos/\udcff.avi", 2, None, None, 1.5),  # a name that is not UTF-8
    Record("/videos/z.mp4", (0, 1_000_000), 0, 2.5, None),
]


def test_records_are_restored():
    shared = SharedRecords(RECORDS)
    assert len(shared) == 5
    assert list(shared) == RECORDS
    assert [shared[i] for i in range(-5, 5)] == RECORDS + RECORDS
    assert list(SharedRecords(shared)) == RECORDS
    with pytest.raises(IndexError):
        shared[5]
