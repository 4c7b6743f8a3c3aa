"""Reading a clip store: videos by key, any frames, every byte checked before it is used."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ffn.data.annotations import Record
from ffn.data.decoding import VideoError
from ffn.data.store.cache import RemoteFiles
from ffn.data.store.files import LocalFiles, OpenShards
from ffn.data.store.layout import Index, Manifest, StoreError, key_of, sha256_of, time_range
from ffn.data.store.video import StoredVideo

CACHE_GIB = 100.0


class ClipStore:
    """A packed data set: the same videos as those it was made from, decoded at a small cost.

    It can be used by many processes at once, forked or pickled; nothing is locked, and each opens
    the shards for itself.

    Args:
        path: Folder, or an address as `https://host/store` or `s3://bucket/store` that fsspec can
            open. Of an address, whole shards are fetched on first use and kept.
        root: Folder of the data set, from which `open_record` counts paths; the one that was given
            when packing, wherever it lies now.
        check: Compare the checksum of every frame before it is decoded, and of the index on
            opening.
        cache: Of an address, the folder of the copies; default a folder in `FFN_HOME`
            (`~/.cache/ffn`).
        cache_gib: Of an address, the bound on the copies.

    Attributes:
        manifest: What `store.json` says: form, short side, counts, shards, unreadable videos.

    Raises:
        StoreError: if there is no store, it cannot be fetched, or its index is damaged.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        root: str | os.PathLike[str] | None = None,
        check: bool = True,
        cache: str | os.PathLike[str] | None = None,
        cache_gib: float = CACHE_GIB,
    ) -> None:
        path = os.fspath(path)
        self.root = None if root is None else os.fspath(root)
        self.check = check
        if "://" in path:
            folder = _cache_folder(path) if cache is None else Path(cache)
            self._files = RemoteFiles(path, folder, int(cache_gib * 2**30))
        else:
            self._files = LocalFiles(path)
        self.path = self._files.name
        self.manifest = Manifest.from_json(self._files.manifest(), f"{self.path}/store.json")
        file = self._files.index(self.manifest.index)
        self._index = Index(file, self.manifest)
        if check and sha256_of(file) != self.manifest.index.sha256:
            raise StoreError(
                f"{file} is damaged: its SHA-256 is not that of store.json; copy it again"
            )
        self._index_file = file
        self._shards = OpenShards(self._files, self.manifest.shards)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_index"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._index = Index(self._index_file, self.manifest)

    def __len__(self) -> int:
        return len(self._index)

    def clips(self) -> Iterator[tuple[str, float | None, float | None]]:
        """Key, start and end (seconds, or None) of every clip, in the order of packing."""
        return self._index.clips()

    def open(
        self, key: str, *, start: float | None = None, end: float | None = None
    ) -> StoredVideo:
        """Open a video.

        Args:
            key: Its path from the `root` of packing, as in the annotation list.
            start: Of the part that will be used, in seconds.
            end: Likewise.

        Returns:
            The clip that was packed for this part, or else the whole video; `between(start, end)`
            finds the part in either.

        Raises:
            VideoError: if the store does not have it.
        """
        ranges = {time_range(self._index.rows[n]): n for n in self._index.find(key)}
        number = ranges.get((start, end), ranges.get((None, None)))
        if number is None:
            raise VideoError(key, self._why_missing(key, list(ranges), start, end))
        return self._video(number)

    def open_record(self, record: Record) -> StoredVideo:
        """Open the video of a record; this is a `source` of `VideoDataset`.

        Raises:
            VideoError: if the store does not have it, or, of a folder of frames, has another
                number of frames than the record.
        """
        video = self.open(key_of(record.path, self.root), start=record.start, end=record.end)
        if record.frames not in (None, len(video)) and not video.timed:
            raise VideoError(
                video.path,
                f"the list says {record.frames} frames, {self.path} holds {len(video)}; pack again",
            )
        return video

    def pages(self, records: Sequence[Record], page_bytes: int | None = None) -> np.ndarray:
        """Number the page on which the clip of each record starts, for `page_order`.

        Args:
            records: The samples.
            page_bytes: Length of a page, counted in each shard from its start; default a page per
                shard, which alone makes sense for an address.

        Returns:
            (N,) int64; records that the store does not have share one page, the last.

        Raises:
            ValueError: if `page_bytes` is below 1.
        """
        if page_bytes is not None and page_bytes < 1:
            raise ValueError(f"page_bytes is {page_bytes}; expected at least 1, or None")
        longest = max((shard.bytes for shard in self.manifest.shards), default=0)
        per_shard = 1 if page_bytes is None else longest // page_bytes + 1
        pages = np.full(len(records), per_shard * len(self.manifest.shards), dtype=np.int64)
        for place, record in enumerate(records):
            try:
                row = self.open(
                    key_of(record.path, self.root), start=record.start, end=record.end
                ).row
            except VideoError:
                continue
            inside = 0 if page_bytes is None else int(row["offset"]) // page_bytes
            pages[place] = int(row["shard"]) * per_shard + inside
        return pages

    def verify(self, progress: Callable[[Iterable[int]], Iterable[int]] = iter) -> list[VideoError]:
        """Read every byte and compare all checksums, without decoding.

        Args:
            progress: Wraps the clip numbers that are gone through, as `rich.progress.track` does.

        Returns:
            One error for each damaged clip.
        """
        found = []
        for number in progress(range(len(self))):
            try:
                self._video(number).verify()
            except VideoError as error:
                found.append(error)
        return found

    def _video(self, number: int) -> StoredVideo:
        row = self._index.rows[number]
        return StoredVideo(
            self._index.key(row),
            row,
            self._shards,
            form=self.manifest.form,
            check=self.check,
        )

    def _why_missing(
        self, key: str, ranges: list[tuple], start: float | None, end: float | None
    ) -> str:
        for one in self.manifest.unreadable:
            if one[:3] == (key, start, end):
                return f"could not be packed into {self.path}: {one.reason}"
        if ranges:
            held = ", ".join(f"{first} … {last} s" for first, last in ranges)
            return f"{self.path} holds {held} of it; asked for were {start} … {end} s: pack again"
        some = f"; its first clip is {next(self.clips())[0]}" if len(self) else ""
        return f"is not in the store {self.path}{some} (data.root = the root when packing?)"


def _cache_folder(address: str) -> Path:
    home = Path(os.environ.get("FFN_HOME") or "~/.cache/ffn").expanduser()
    return home / "stores" / hashlib.sha256(address.rstrip("/").encode()).hexdigest()[:16]
