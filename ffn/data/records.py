"""Records of labelled videos, and a sequence of records in shared memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from ffn.labels import SEPARATOR

Label = int | tuple[int, ...]  # class index; ascending class indices of a video with several labels


@dataclass(frozen=True, slots=True)
class Record:
    """One labelled video.

    Attributes:
        path: Video file or folder of frames.
        label: Class index; in a list with several labels per video, their ascending indices.
        frames: Number of frames of a folder, or of a file that is not seekable, or None to count
            them; a seekable file is always counted.
        start: Start of the part to use, in seconds, or None for the start of the video.
        end: End of the part to use, in seconds, or None for the end of the video.
    """

    path: str
    label: Label
    frames: int | None = None
    start: float | None = None
    end: float | None = None


def labels_of(record: Record) -> tuple[int, ...]:
    """All class indices of a record."""
    return _as_tuple(record.label)


def has_several_labels(records: Sequence[Record]) -> bool:
    """Whether records are those of a list with several labels per video."""
    return bool(records) and isinstance(records[0].label, tuple)


def label_text(label: Label, classes: Sequence[object] | None = None) -> str:
    """A label as lists have it: `3`, or `0|3` for several, with class names if they are given."""
    names = [i if classes is None else classes[i] for i in _as_tuple(label)]
    return SEPARATOR.join(map(str, names))


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
        labels = [labels_of(record) for record in records]
        frames = [_or(record.frames, -1) for record in records]
        times = [(_or(record.start, np.nan), _or(record.end, np.nan)) for record in records]
        self._several_labels = has_several_labels(records)
        self._paths = _Ragged(np.frombuffer(b"".join(paths), dtype=np.uint8), paths)
        self._labels = _Ragged(np.array([*chain(*labels)], dtype=np.int64), labels)
        self._frames = _share(np.array(frames, dtype=np.int64))
        self._times = _share(np.array(times, dtype=np.float64).reshape(-1, 2))  # start, end

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]  # resolves negative indices, raises IndexError
        path = self._paths[index].numpy().tobytes()
        labels, frames = self._labels[index].tolist(), int(self._frames[index])
        label = tuple(labels) if self._several_labels else labels[0]
        start, end = (None if math.isnan(x) else x for x in self._times[index].tolist())
        frames = None if frames < 0 else frames
        return Record(path.decode("utf-8", "surrogateescape"), label, frames, start, end)

    def __iter__(self) -> Iterator[Record]:
        return (self[index] for index in range(len(self)))


class _Ragged:
    """Sequences of different lengths, one after another in shared memory.

    Args:
        values: The values of all sequences.
        parts: The sequences, for their lengths.
    """

    def __init__(self, values: np.ndarray, parts: Sequence[Sized]) -> None:
        self._values = _share(values)
        self._ends = _share(np.cumsum([len(part) for part in parts], dtype=np.int64))

    def __getitem__(self, index: int) -> torch.Tensor:
        first = self._ends[index - 1] if index else 0
        return self._values[first : self._ends[index]]


def _as_tuple(label: Label) -> tuple[int, ...]:
    return label if isinstance(label, tuple) else (label,)


def _share(array: np.ndarray) -> torch.Tensor:
    """Copy an array to a tensor in shared memory."""
    return torch.from_numpy(array.copy()).share_memory_()


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
