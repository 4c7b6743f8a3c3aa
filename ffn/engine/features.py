"""Features of a frozen network, computed once per video and number of frames and kept on disk."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from functools import cached_property
from itertools import product
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.utils.data import Dataset

from ffn.data import VideoDataset
from ffn.data.records import has_several_labels
from ffn.evaluation import evaluating
from ffn.files import home, make_writable

FILE = "features.db"  # in FFN_HOME
TIMEOUT = 600  # seconds that a process waits for another one's write
QUERY = "SELECT {} FROM features WHERE key = ?"
SCHEMA = "CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID"


class FeatureDataset(Dataset[dict[str, Any]]):
    """The samples of a `VideoDataset` with features in place of clips.

    A sample that is not on disk is decoded, run and written; a stopped run goes on from there. Its
    key has the path, size and time of the video, and all that decides what its features are.
    Unreadable videos are not kept.

    Args:
        dataset: the videos.
        network: has ``forward_features``, on its device.
        source: returns what decides the features of a clip: weights, sub-networks, options of the
            data; called at the first use, when a resumed run has the weights of its checkpoint.
        numbers: all numbers of frames of the clips.
        variants: training draws frames and crops anew in so many epochs, then repeats them.
        half: type in which the network runs; None for float32. Features are kept in float16.
    """

    def __init__(
        self,
        dataset: VideoDataset,
        network: nn.Module,
        *,
        source: Callable[[], object],
        numbers: Iterable[int],
        variants: int,
        half: torch.dtype | None = None,
    ) -> None:
        self.dataset, self.network, self.half = dataset, network, half
        self.variants, self.numbers = variants, {number: number for number in sorted(numbers)}
        self.records, self.labels = dataset.records, dataset.labels
        self.normalize = nn.Identity()
        self._find_source = source
        make_writable(home())
        with closing(self._open()) as store:
            store.execute(SCHEMA)

    def missing(self) -> list[tuple[int, int]]:
        """Index and variant of each sample that is not on disk at all numbers of frames."""
        variants, query = range(self.variants if self.dataset.train else 1), QUERY.format("1")
        with closing(self._open()) as store:
            return [
                pair
                for pair in product(range(len(self)), variants)
                if not all(
                    store.execute(query, [self._key(*pair, n)]).fetchone() for n in self.numbers
                )
            ]

    def compute(
        self, index: int, variant: int, numbers: Iterable[int]
    ) -> tuple[dict[str, Any], dict[int, dict[str, Tensor]], list[tuple[int, int, int, bytes]]]:
        """A sample of the videos, what is kept of it by number of frames, and rows for `keep`.

        A row has index, variant, number and value. There are none if the video cannot be read.
        """
        sample = self.dataset[variant, index, 0, self.numbers]
        label = torch.as_tensor(sample["label"])
        new = {n: {"x": self._run(sample["clips"][n]), "label": label} for n in numbers}
        rows = [(index, variant, n, save(value)) for n, value in new.items()]
        return sample, new, rows if sample["ok"] else []

    def keep(self, rows: Iterable[tuple[int, int, int, bytes]]) -> None:
        """Write rows that :meth:`compute` has returned, here or on another machine."""
        values = [(self._key(*sample), value) for *sample, value in rows]
        with closing(self._open()) as store, store:
            store.executemany("INSERT OR REPLACE INTO features VALUES (?, ?)", values)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: int | tuple) -> dict[str, Any]:
        """A sample as that of the data set, with features (C, T, H, W) in float32 as clips."""
        (epoch, index, _), numbers = self.dataset.complete_key(key)
        variant = epoch % self.variants if self.dataset.train else 0
        keys = {number: self._key(index, variant, number) for number in numbers.values()}
        with closing(self._open()) as store:
            rows = {
                n: store.execute(QUERY.format("value"), [k]).fetchone() for n, k in keys.items()
            }
        found = {number: load(row[0]) for number, row in rows.items() if row}
        sample = {"index": index, "ok": True, "error": ""}
        if missing := keys.keys() - found.keys():
            sample, new, values = self.compute(index, variant, missing)
            self.keep(values)
            found |= new
        clips = {view: found[number]["x"].float() for view, number in numbers.items()}
        return sample | {"clips": clips, "label": next(iter(found.values()))["label"]}

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(home() / FILE, timeout=TIMEOUT)

    @cached_property
    def _source(self) -> object:
        dataset = self.dataset
        drawn = (dataset.seed, tuple(self.numbers)) if dataset.train or dataset.nested else None
        classes = dataset.num_classes if has_several_labels(dataset.records) else None
        return self._find_source(), str(dataset.protocol), drawn, classes

    def _key(self, index: int, variant: int, number: int) -> bytes:
        record, version = self.records[index], None
        with suppress(OSError):  # a name in a clip store
            version = os.stat(record.path).st_size, os.stat(record.path).st_mtime_ns
        text = repr((self._source, record, version, variant, number))
        return hashlib.sha256(text.encode()).digest()

    def _run(self, clip: Tensor) -> Tensor:
        """Features in float16 of a uint8 clip (C, T, H, W), or of several views of a video."""
        device = next(self.network.parameters()).device
        views = clip.reshape(-1, *clip.shape[-4:])
        x = self.dataset.normalize(views.to(device))
        cast = torch.autocast(device.type, self.half, enabled=self.half is not None)
        with evaluating(self.network), torch.inference_mode(), cast:
            features = self.network.forward_features(x)
        return features.reshape(*clip.shape[:-4], *features.shape[1:]).half().cpu()


def hash_of(state: dict[str, Tensor]) -> str:
    """SHA-256 of names and values."""
    found = hashlib.sha256()
    for name, value in sorted(state.items()):
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()
