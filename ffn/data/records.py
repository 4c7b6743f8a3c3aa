"""Records of labelled videos, and a sequence of records in shared memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields

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

    @property
    def labels(self) -> tuple[int, ...]:
        """All class indices."""
        return _as_tuple(self.label)


_FIELDS = [field.name for field in fields(Record)]


def has_several_labels(records: Sequence[Record]) -> bool:
    """Whether records are those of a list with several labels per video."""
    return bool(records) and isinstance(records[0].label, tuple)


def label_text(label: Label, classes: Sequence[object] | None = None) -> str:
    """A label as lists have it: `3`, or `0|3` for several, with class names if they are given."""
    names = [i if classes is None else classes[i] for i in _as_tuple(label)]
    return SEPARATOR.join(map(str, names))


class SharedRecords(Sequence[Record]):
    """A sequence of records, stored as JSON in shared memory; indexing builds a `Record`.

    Loader workers do not copy it. A worker started by `spawn` or `forkserver` receives handles of
    the tensors. A forked worker shares their pages; it would copy the pages of a list of objects
    one by one, since reading an object writes its reference count.

    Args:
        records: The records, in order.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        texts = [json.dumps([getattr(r, name) for name in _FIELDS]).encode() for r in records]
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        self._text = torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8).share_memory_()
        self._ends = torch.from_numpy(ends).share_memory_()

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Record:
        index = range(len(self))[index]  # resolves negative indices, raises IndexError
        first = self._ends[index - 1] if index else 0
        path, label, *rest = json.loads(self._text[first : self._ends[index]].numpy().tobytes())
        return Record(path, tuple(label) if isinstance(label, list) else label, *rest)


def _as_tuple(label: Label) -> tuple[int, ...]:
    return label if isinstance(label, tuple) else (label,)
