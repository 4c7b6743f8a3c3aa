"""Read a clip store: open videos by key, verify checksums, and order samples by page."""

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
from ffn.data.store.layout import Index, Manifest, StoreError, key_of, sha256_of, time_range
from ffn.data.store.ranges import RangedShards
from ffn.data.store.shards import LocalFiles, OpenShards
from ffn.data.store.video import StoredVideo

ACCESS = ("shards", "ranges")
CACHE_GIB = 100.0
WINDOW = 16  # pages


class ClipStore:
    """A packed data set, from which any frames of any video decode quickly.

    Many processes and threads may use it at once; processes may be forked, or pickle it. Readers
    take no lock; each process opens the shards for itself.

    Args:
        path: Folder, or an address that fsspec opens, such as `https://host/store` or
            `s3://bucket/store`.
        root: Folder of the data set, which `open_record` removes from paths. It corresponds to the
            `root` of packing and may have moved.
        access: How the frames of a store at an address are read. "shards" downloads each shard on
            first use and caches it: for reading most of the store, or the same clips often.
            "ranges" fetches only the frames, by range requests, and always compares their
            checksums: for reading a few clips once. The index is cached in both cases.
        check: Verify the checksum of the index on opening and of every frame before decoding.
        cache: Folder for the downloads from an address; default: a folder in `FFN_HOME`
            (`~/.cache/ffn`).
        cache_gib: Upper bound on the size of the downloads, in GiB.

    Attributes:
        manifest: Content of `store.json`: format, short side, counts, shards, unreadable videos.

    Raises:
        StoreError: if there is no store, the download fails, or the index is damaged.
        ValueError: if `access` is neither "shards" nor "ranges".
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        root: str | os.PathLike[str] | None = None,
        access: str = "shards",
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
                f"{file} is damaged: its SHA-256 differs from store.json; copy it again"
            )
        self._index_file = file
        self.access = access

    @property
    def access(self) -> str:
        """ "shards" or "ranges"; see the argument. Videos opened before a change keep theirs."""
        return self._access

    @access.setter
    def access(self, access: str) -> None:
        if access not in ACCESS:
            raise ValueError(f"access is {access!r}; expected one of {', '.join(ACCESS)}")
        by_ranges = access == "ranges" and isinstance(self._files, RemoteFiles)
        kind = RangedShards if by_ranges else OpenShards
        self._access, self._shards = access, kind(self._files, self.manifest.shards)

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

    def sizes(self) -> tuple[np.ndarray, np.ndarray]:
        """Number of frames, and shorter side in pixels, of every clip, in the order of packing."""
        rows = self._index.rows
        sides = np.minimum(rows["width"], rows["height"])
        return rows["frames"].astype(np.float64), sides.astype(np.float64)

    def open(
        self, key: str, *, start: float | None = None, end: float | None = None
    ) -> StoredVideo:
        """Open a video.

        Args:
            key: Path relative to the `root` of packing, as in the annotation list.
            start: Start of the time range in seconds.
            end: End of the time range in seconds.

        Returns:
            The clip of this time range if it was packed, else the whole video;
            `between(start, end)` selects the frames of the range in both.

        Raises:
            VideoError: if the store does not contain it, or its row of the index is impossible.
        """
        ranges = {time_range(self._index.rows[n]): n for n in self._index.find(key)}
        number = ranges.get((start, end), ranges.get((None, None)))
        if number is None:
            raise VideoError(key, self._why_missing(key, list(ranges), start, end))
        return self._video(number)

    def open_record(self, record: Record) -> StoredVideo:
        """Open the video of a record; use it as `source` of `VideoDataset`.

        Raises:
            VideoError: if the store does not contain it, or a folder of frames has another number
                of frames than the record.
        """
        video = self.open(key_of(record.path, self.root), start=record.start, end=record.end)
        if record.frames not in (None, len(video)) and not video.timed:
            raise VideoError(
                video.path,
                f"the list has {record.frames} frames, {self.path} has {len(video)}; pack again",
            )
        return video

    def pages(self, records: Sequence[Record], page_bytes: int | None = None) -> np.ndarray:
        """Page number of the clip of each record, for `page_order`.

        Args:
            records: The samples.
            page_bytes: Length of a page; pages start at the beginning of each shard. Default: one
                page per shard. Use the default for an address.

        Returns:
            (N,) int64; records that are not in the store share the last page.

        Raises:
            ValueError: if `page_bytes` is below 1.
        """
        if page_bytes is not None and page_bytes < 1:
            raise ValueError(f"page_bytes is {page_bytes}; expected at least 1, or None")
        longest = max((shard.bytes for shard in self.manifest.shards), default=0)
        per_shard = 1 if page_bytes is None else longest // page_bytes + 1
        pages = np.full(len(records), per_shard * len(self.manifest.shards), dtype=np.int64)
        for position, record in enumerate(records):
            if (row := self._row(record)) is not None:
                inside = 0 if page_bytes is None else int(row["offset"]) // page_bytes
                pages[position] = int(row["shard"]) * per_shard + inside
        return pages

    def contents(self, records: Sequence[Record]) -> list[str]:
        """Length and checksum of the clip of each record; empty if the store does not hold it."""
        rows = map(self._row, records)
        return ["" if row is None else f"{row['bytes']}-{row['crc']:08x}" for row in rows]

    def share(self, records: Iterable[Record]) -> float:
        """Bytes of the clips of records, relative to the bytes of the shards that hold them.

        A small share means that most of each shard would be downloaded for nothing.

        Returns:
            0 to 1; 0 if the store holds none of the records.
        """
        rows = [row for row in map(self._row, records) if row is not None]
        clips = {(int(row["shard"]), int(row["offset"])): int(row["bytes"]) for row in rows}
        whole = sum(self.manifest.shards[number].bytes for number in {place[0] for place in clips})
        return sum(clips.values()) / whole if whole else 0.0

    def verify(self, progress: Callable[[Iterable[int]], Iterable[int]] = iter) -> list[VideoError]:
        """Verify the checksums of all clips without decoding.

        Args:
            progress: Wraps the iteration over clip numbers, for example `rich.progress.track`.

        Returns:
            One error per damaged clip.
        """
        found = []
        for number in progress(range(len(self))):
            try:
                self._video(number).verify()
            except VideoError as error:
                found.append(error)
        return found

    def _row(self, record: Record) -> np.void | None:
        """The row of the clip of a record; None if the store does not hold it."""
        key = key_of(record.path, self.root)
        try:
            return self.open(key, start=record.start, end=record.end).row
        except VideoError:
            return None

    def _video(self, number: int) -> StoredVideo:
        row = self._index.rows[number]
        return StoredVideo(
            self._index.key(row),
            row,
            self._shards,
            format=self.manifest.format,
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
            return f"{self.path} holds {held} of it, not {start} … {end} s; pack again"
        first = f"; the first clip of the store is {next(self.clips())[0]}" if len(self) else ""
        hint = "check that data.root is the root used for packing"
        return f"is not in the store {self.path}{first}; {hint}"


def _cache_folder(address: str) -> Path:
    home = Path(os.environ.get("FFN_HOME") or "~/.cache/ffn").expanduser()
    return home / "stores" / hashlib.sha256(address.rstrip("/").encode()).hexdigest()[:16]


def page_order(
    pages: np.ndarray, seed: int, epoch: int, *, window: int | None = WINDOW
) -> np.ndarray:
    """Permute samples randomly while few pages of a store are in use at a time.

    This is the quasi-random order of FFCV (Leclerc et al. 2023): pages come in a random order, and
    samples mix inside a sliding window of pages. A sample on the page of rank r gets the sort key
    r + window * u, with u uniform in [0, 1). At key k, only pages of the ranks k - window < r <= k
    are in use: at most `window` pages.

        >>> page_order(np.array([0, 0, 1, 1, 2, 2]), seed=0, epoch=0, window=1).tolist()
        [4, 5, 3, 2, 0, 1]

    In one epoch a sample moves at most `window` pages from its page. The order of the pages is
    drawn again in each epoch, so any two samples may be neighbours in some epoch. If `window`
    covers all pages, the result is a uniformly random permutation.

    Args:
        pages: (N,) int, the page of each sample.
        seed: First part of the random seed.
        epoch: Second part of the random seed.
        window: Number of pages in use at a time; None: all.

    Returns:
        (N,) int64, a permutation of 0 … N - 1 that depends on the arguments only.

    Raises:
        ValueError: if `window` is below 1.
    """
    if window is not None and window < 1:
        raise ValueError(f"window is {window} pages; expected at least 1, or None for all")
    generator = np.random.default_rng(np.random.SeedSequence([seed, epoch]))
    names, page = np.unique(pages, return_inverse=True)
    if window is None or window >= len(names):
        return generator.permutation(len(pages))
    rank = generator.permutation(len(names))
    keys = rank[page.reshape(-1)] + window * generator.random(len(pages))
    return np.argsort(keys, kind="stable")
