"""Records in a few arrays in place of many objects, so that forked workers share their memory.

Python counts the references of an object in the object itself: a worker that only looks at a list
of records writes to their memory, and the system copies it page by page. With a quarter of a
million records in each of many workers this adds up, epoch by epoch, to what looks like a leak.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ffn.data.annotations import Record


class PackedRecords(Sequence[Record]):
    """A sequence of records; an item is built when it is asked for.

    Args:
        records: What it holds, in that order.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        paths = [record.path.encode("utf-8", "surrogateescape") for record in records]
        self._paths = np.frombuffer(b"".join(paths), dtype=np.uint8)
        self._stops = np.cumsum([len(path) for path in paths], dtype=np.int64)
        self._labels = np.array([record.label for record in records], dtype=np.int64)
        self._frames = np.array([_or(record.frames, -1) for record in records], dtype=np.int64)
        ranges = [(_or(record.start, np.nan), _or(record.end, np.nan)) for record in records]
        self._ranges = np.array(ranges, dtype=np.float64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]  # negative ones, and IndexError
        first = self._stops[index - 1] if index else 0
        path = self._paths[first : self._stops[index]].tobytes().decode("utf-8", "surrogateescape")
        frames = int(self._frames[index])
        start, end = (None if np.isnan(x) else float(x) for x in self._ranges[index])
        return Record(path, int(self._labels[index]), None if frames < 0 else frames, start, end)

    def __iter__(self) -> Iterator[Record]:
        return (self[index] for index in range(len(self)))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
