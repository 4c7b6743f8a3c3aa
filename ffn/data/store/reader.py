"""Read a clip store: open videos by key, and verify checksums."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path

from ffn.data.decoding import VideoError
from ffn.data.records import Record
from ffn.data.store.layout import (
    Clip,
    Manifest,
    StoreError,
    Unreadable,
    key_of,
    query,
)
from ffn.data.store.remote import Files
from ffn.data.store.video import StoredVideo
from ffn.files import home, sha256_of

_COLUMNS = ", ".join(f'"{name}"' for name in Clip._fields)


class ClipStore:
    """A packed data set, from which any frames of any video decode quickly.

    Many processes and threads may use it at once; processes may be forked, or pickle it. The
    checksum of every frame is verified before it is decoded.

    Args:
        path: Folder, or an address that fsspec opens, such as `https://host/store` or
            `s3://bucket/store`. Shards at an address are downloaded whole on first use and kept.
            A request that fails is repeated, five times within 31 seconds.
        root: Folder of the data set, which `open_record` removes from paths. It corresponds to the
            `root` of packing and may have moved.
        cache: Folder for the downloads from an address; default: a folder in `FFN_HOME`
            (`~/.cache/ffn`).
        cache_bytes: Limit on the shards in that folder; None for no limit. The first shards are
            kept. Frames of the others are read from the address, by ranges, at every use.

    Attributes:
        manifest: Content of `store.json`: short side, quality, and counts.

    Raises:
        StoreError: if there is no store, the download fails, or the index is damaged.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        root: str | os.PathLike[str] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self.path, self.root = os.fspath(path).rstrip("/"), root
        own = home() / "stores" / hashlib.sha256(self.path.encode()).hexdigest()[:16]
        self._files = Files(self.path, own if cache is None else Path(cache))
        self.manifest = Manifest.parse(self._files.manifest(), f"{self.path}/store.json")
        try:
            self._index = self._files.path(self.manifest.index, self.manifest.sha256)
            found = sha256_of(self._index)
        except OSError as error:
            raise StoreError(str(error)) from None
        if found != self.manifest.sha256:
            raise StoreError(
                f"{self._index} is damaged: its SHA-256 differs from store.json; copy it again"
            )
        if cache_bytes is not None:
            self._files.limit(self._shards, cache_bytes)

    def __len__(self) -> int:
        return self.manifest.clips

    @cached_property
    def unreadable(self) -> list[Unreadable]:
        """The videos that could not be packed."""
        rows = query(self._index, "SELECT * FROM unreadable ORDER BY rowid")
        return [Unreadable(os.fsdecode(key), *rest) for key, *rest in rows]

    @cached_property
    def _shards(self) -> dict[int, tuple[str, int]]:
        """SHA-256 and length of each shard, by number."""
        rows = query(self._index, "SELECT number, sha256, bytes FROM shards")
        return {number: (sha256, size) for number, sha256, size in rows}

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
        clips = self._clips("WHERE key = ?", os.fsencode(key))
        ranges = {(clip.start, clip.end): clip for clip in clips}
        clip = ranges.get((start, end), ranges.get((None, None)))
        if clip is None:
            raise VideoError(key, self._why_missing(key, start, end))
        return self._video(clip)

    def open_record(self, record: Record) -> StoredVideo:
        """Open the video of a record; use it as `source` of `VideoDataset`.

        Raises:
            VideoError: if the store does not contain it, or a folder of frames has another number
                of frames than the record.
        """
        video = self.open(key_of(record.path, self.root), start=record.start, end=record.end)
        if record.frames not in (None, len(video)) and not video.clip.timed:
            raise VideoError(
                video.path,
                f"the list has {record.frames} frames, {self.path} has {len(video)}; pack again",
            )
        return video

    def verify(self, progress: Callable[[Iterable], Iterable] = iter) -> list[VideoError]:
        """Verify the checksums of all clips without decoding.

        Args:
            progress: Wraps the iteration over clips, for example `rich.progress.track`.

        Returns:
            One error per damaged clip.
        """
        found = []
        for clip in progress(self._clips("ORDER BY rowid")):
            try:
                self._video(clip).verify()
            except VideoError as error:
                found.append(error)
        return found

    def _clips(self, condition: str, *values: object) -> list[Clip]:
        rows = query(self._index, f"SELECT {_COLUMNS} FROM clips {condition}", *values)
        return [Clip(*row) for row in rows]

    def _video(self, clip: Clip) -> StoredVideo:
        key = os.fsdecode(clip.key)
        if clip.shard not in self._shards:
            raise VideoError(key, f"the index of {self.path} does not name shard {clip.shard}")
        return StoredVideo(key, clip, self._files, *self._shards[clip.shard])

    def _why_missing(self, key: str, start: float | None, end: float | None) -> str:
        failed = {one[:3]: one.reason for one in self.unreadable}
        if (key, start, end) in failed:
            return f"could not be packed into {self.path}: {failed[key, start, end]}"
        return (
            f"is not in the store {self.path}; check that data.root is the root used for packing, "
            "or pack again, which adds what is missing"
        )
