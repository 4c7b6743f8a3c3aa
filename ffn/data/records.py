"""Records of labelled videos, and a sequence of records in shared memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Record:
    """One labelled video.

    Attributes:
        path: Video file or folder of frames.
        label: Class index.
        frames: Number of frames of a folder, or None to count them; files are always counted.
        start: Start of the part to use, in seconds, or None for the start of the video.
        end: End of the part to use, in seconds, or None for the end of the video.
    """

    path: str
    label: int
    frames: int | None = None
    start: float | None = None
    end: float | None = None


class SharedRecords(Sequence[Record]):
    """A sequence of records, stored as tensors in shared memory; indexing builds a `Record`.

    Loader workers do not copy it. A worker started by `spawn` or `forkserver` receives handles of
    the tensors. A forked worker shares their pages; it would copy the pages of a list of objects
    one by one, since reading an object writes its reference count.

    Args:
        records: The records, in order.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        paths = [record.path.encode("utf-8", "surrogateescape") for record in records]
        ends = np.cumsum([len(path) for path in paths], dtype=np.int64)
        labels = [(record.label, _or(record.frames, -1)) for record in records]
        times = [(_or(record.start, np.nan), _or(record.end, np.nan)) for record in records]
        self._paths = _share(np.frombuffer(b"".join(paths), dtype=np.uint8))
        self._ends = _share(ends)  # of each path
        self._labels = _share(np.array(labels, dtype=np.int64).reshape(-1, 2))  # label, frames
        self._times = _share(np.array(times, dtype=np.float64).reshape(-1, 2))  # start, end

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]  # resolves negative indices, raises IndexError
        first = self._ends[index - 1] if index else 0
        path = self._paths[first : self._ends[index]].numpy().tobytes()
        label, frames = self._labels[index].tolist()
        start, end = (None if math.isnan(x) else x for x in self._times[index].tolist())
        frames = None if frames < 0 else frames
        return Record(path.decode("utf-8", "surrogateescape"), label, frames, start, end)

    def __iter__(self) -> Iterator[Record]:
        return (self[index] for index in range(len(self)))


def _share(array: np.ndarray) -> torch.Tensor:
    """Copy an array to a tensor in shared memory."""
    return torch.from_numpy(array.copy()).share_memory_()


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
