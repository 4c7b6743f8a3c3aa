"""Pack a data set into a clip store, in parallel worker processes.

Clips are written to a shard, and their rows to `pack.db`. A shard that is full is synced, and then
its rows are committed; a pack that is killed at any moment resumes behind the last full shard. At
the end `pack.db` becomes the index, then `store.json` is written. Packing into a finished store
adds the clips that it lacks in new shards; its shards never change.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ffn.data.decoding import PATTERN, VideoError
from ffn.data.records import Record
from ffn.data.store.layout import (
    MANIFEST,
    SCHEMA,
    Clip,
    Manifest,
    StoreError,
    Unreadable,
    key_of,
    shard_name,
)
from ffn.data.store.video import EncodedClip, encode_clip
from ffn.data.workers import TIMEOUT, map_in_processes
from ffn.files import atomic_write, naming, sha256_of, write_text

QUALITY = 90
LOCK_TIMEOUT = 3  # seconds; the workers of a killed pack end within one
JOURNAL, LOCK, TRANSFER = "pack.db", "pack.lock", "pack-"

Name = tuple[str, float | None, float | None]  # key, start, end
Run = Iterator[tuple[Record, Any]]


@dataclass
class PackReport:
    """The result of `pack`.

    Attributes:
        packed: Number of clips that were added.
        kept: Number of requested clips that an earlier or interrupted run had packed.
        unreadable: The requested videos that could not be packed, with the cause.
        manifest: Of the store, with the numbers of its clips, frames and bytes.
    """

    manifest: Manifest
    packed: int = 0
    kept: int = 0
    unreadable: list[Unreadable] = field(default_factory=list)


def pack(
    records: Sequence[Record],
    folder: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    short_side: int = 256,
    quality: int = QUALITY,
    shard_mib: float = 256,
    pattern: str = PATTERN,
    workers: int = 0,
    timeout: float = TIMEOUT,
    progress: bool = False,
    run: Callable[[Callable[[Record], Any], Sequence[Record]], Run] | None = None,
) -> PackReport:
    """Pack the videos of annotations into a clip store.

    Every frame of each record (of its time range, if it has one) is decoded, downscaled if its
    shorter side exceeds `short_side`, encoded as JPEG and written. Duplicate records are packed
    once. Calling again with the same arguments resumes an interrupted pack; the shards are those of
    an uninterrupted one. Records that a finished store lacks are added to it in new shards.

    Args:
        records: The videos, as `read_annotations` returns them, of one list or several.
        folder: Folder of the store; created if necessary.
        root: Folder of the data set. Clips are named by their path relative to it, so the data set
            and the store may move. Default: the paths of the records.
        short_side: Upper bound on the shorter side in pixels. Videos are never enlarged.
        quality: JPEG quality, 1 to 100.
        shard_mib: Maximum size of a shard in MiB; a longer clip gets its own shard.
        pattern: File name of a frame in a folder of frames.
        workers: Number of processes that decode and encode; 0 runs in this process.
        timeout: Seconds per video. A video that times out or crashes its process is unreadable.
            No effect with 0 workers.
        progress: Show a progress bar.
        run: What applies a function to the records, in place of `workers` processes: it yields each
            record and its result, or a `Failure`, in their order; see examples/prepare_with_ray.py.

    Returns:
        A report. Unreadable videos are listed in it and in the store.

    Raises:
        ValueError: if an option is out of range, there is no record, or `folder` is an address.
        StoreError: if `folder` holds a store with other options, or another process packs into it.
        FileExistsError: if `folder` holds other files.
        OSError: if the store cannot be written.
    """
    if not records or min(short_side, quality) < 1 or quality > 100 or shard_mib <= 0:
        raise ValueError(
            f"{len(records)} records, short_side {short_side}, quality {quality}, shard_mib "
            f"{shard_mib}; expected a record, and numbers above 0, a quality up to 100"
        )
    if "://" in os.fspath(folder):
        raise ValueError(f"the store is {folder}; pack into a folder and copy it there")
    folder, options = Path(folder), (short_side, quality)
    folder.mkdir(parents=True, exist_ok=True)
    _check_folder(folder)
    requested: dict[Name, Record] = {}
    for record in records:  # the first of several duplicates
        requested.setdefault((key_of(record.path, root), record.start, record.end), record)
    try:
        with FileLock(folder / LOCK, timeout=LOCK_TIMEOUT):
            before = _finished(folder, options)
            with (
                closing(_Writer(folder, before, options, int(shard_mib * 2**20))) as writer,
                tempfile.TemporaryDirectory(prefix=TRANSFER, dir=folder) as transfer,
            ):
                encode = partial(_encode, options=options, pattern=pattern, transfer=transfer)
                run = run or partial(map_in_processes, workers=workers, timeout=timeout)
                return _pack(requested, writer, partial(run, encode), progress)
    except Timeout:
        raise StoreError(f"another process packs into {folder}; wait until it is done") from None


def _check_folder(folder: Path) -> None:
    """Raise FileExistsError for a folder that has files, but no store and no unfinished pack."""
    names = {path.name for path in folder.iterdir()} - {LOCK}
    if names and not names & {MANIFEST, JOURNAL}:
        raise FileExistsError(
            f"{folder} holds {min(names)}, which is not part of a store; move it away, or name a "
            "new folder"
        )


def _finished(folder: Path, options: tuple[int, int]) -> Manifest | None:
    """Manifest of the finished store in a folder, if there is one; it has the same options."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    manifest = Manifest.parse(path.read_bytes(), str(path))
    _check_equal(folder, (manifest.short_side, manifest.quality), options)
    return manifest


def _check_equal(folder: Path, found: tuple[int, int], options: tuple[int, int]) -> None:
    if found != options:
        raise StoreError(
            f"{folder} is packed with (short_side, quality) {found}, not {options}; use these, or "
            "name another folder"
        )


def _pack(
    requested: Mapping[Name, Record],
    writer: _Writer,
    encode_all: Callable[[Sequence[Record]], Run],
    progress: bool,
) -> PackReport:
    """Encode and write the clips that the store lacks."""
    from rich.progress import track

    missing = {name: record for name, record in requested.items() if name not in writer.known}
    unreadable = []
    with closing(encode_all([*missing.values()])) as results:
        shown = track(results, "packing", total=len(missing), disable=not progress)
        for (name, record), (packed, result) in zip(missing.items(), shown, strict=True):
            if packed != record:
                raise ValueError(f"run gave {packed}; expected {record}, the order of the records")
            if isinstance(result, str):
                unreadable.append(Unreadable(*name, str(result)))
            else:
                clip, path = result
                writer.add(*name, clip._replace(data=path.read_bytes()))
                path.unlink()
    return PackReport(
        writer.finish(unreadable),
        packed=len(missing) - len(unreadable),
        kept=len(requested) - len(missing),
        unreadable=unreadable,
    )


def _encode(
    record: Record, *, options: tuple[int, int], pattern: str, transfer: str
) -> tuple[EncodedClip, Path] | str:
    """Encode a record into a file in `transfer`, or return why it cannot be read.

    The bytes do not pass the pipe of the pool, which a process that exits meanwhile would block.
    """
    try:
        clip = encode_clip(record, pattern, *options)
    except VideoError as error:
        frame = "" if error.frame is None else f"frame {error.frame}: "
        return f"{frame}{error.cause}"
    handle, path = tempfile.mkstemp(dir=transfer)
    with naming(Path(path)), open(handle, "wb") as file:
        file.write(clip.data)
    return clip._replace(data=b""), Path(path)


class _Writer:
    """Add clips to a new, an unfinished or a finished store.

    Args:
        folder: Folder of the store.
        before: Manifest of the finished store, if there is one.
        options: Short side and quality.
        shard_bytes: Maximum size of a shard that holds more than one clip.

    Attributes:
        known: Key, start and end of the clips in the store.

    Raises:
        StoreError: if the folder holds an unfinished pack with other options.
    """

    def __init__(
        self, folder: Path, before: Manifest | None, options: tuple[int, int], shard_bytes: int
    ) -> None:
        self.folder, self.shard_bytes, self._before = folder, shard_bytes, before
        journal = folder / JOURNAL
        if before is not None and not journal.exists():
            _copy(folder / before.index, journal)
        self._database = sqlite3.connect(journal)
        self._database.executescript(SCHEMA)
        found = self._database.execute("SELECT * FROM options").fetchone()
        if found is None:
            self._database.execute("INSERT INTO options VALUES (?, ?)", options)
            self._database.commit()
        _check_equal(folder, found or options, options)
        self._options = options
        names = self._database.execute('SELECT key, start, "end" FROM clips')
        self.known = {(os.fsdecode(key), start, end) for key, start, end in names}
        self._open_shard()

    def add(self, key: str, start: float | None, end: float | None, clip: EncodedClip) -> None:
        """Write one clip."""
        with naming(self.folder):
            if self._size and self._size + len(clip.data) > self.shard_bytes:
                self._close_shard()
                self._open_shard()
            place = (self._number, self._size, len(clip.data))
            row = Clip(os.fsencode(key), start, end, *place, *clip[1:])
            self._shard.write(clip.data)
            self._database.execute(f"INSERT INTO clips VALUES ({', '.join('?' * len(row))})", row)
            self._size += len(clip.data)
            self.known.add((key, start, end))

    def finish(self, unreadable: Sequence[Unreadable]) -> Manifest:
        """Write the index and `store.json`, and return the manifest.

        Args:
            unreadable: Videos that could not be packed.
        """
        self._close_shard()
        rows = self._database.execute("SELECT * FROM unreadable ORDER BY rowid").fetchall()
        earlier = [Unreadable(os.fsdecode(key), *rest) for key, *rest in rows]
        failed = {one[:3]: one for one in (*earlier, *unreadable) if one[:3] not in self.known}
        entries = [(os.fsencode(one.key), *one[1:]) for one in failed.values()]
        if entries != rows:  # a pack that was stopped at its end writes the same index again
            self._database.execute("DELETE FROM unreadable")
            self._database.executemany("INSERT INTO unreadable VALUES (?, ?, ?, ?)", entries)
            self._database.commit()
        count = "SELECT count(*), total(frames), total(bytes) FROM clips"
        counts = map(int, self._database.execute(count).fetchone())
        journal = self.folder / JOURNAL
        names = ("short_side", "quality", "clips", "frames", "bytes")
        numbers = dict(zip(names, (*self._options, *counts), strict=True))
        manifest = Manifest(**numbers, sha256=sha256_of(journal))
        _copy(journal, self.folder / manifest.index)
        write_text(self.folder / MANIFEST, manifest.model_dump_json(indent=1), sync=True)
        journal.unlink()
        # A reader that opened the previous store.json may still open the previous index.
        used = {one.index for one in (manifest, self._before) if one is not None}
        is_new = self._before is None or manifest.index != self._before.index
        for index in self.folder.glob("index-*.db"):
            if is_new and index.name not in used:
                index.unlink()
        return manifest

    def close(self) -> None:
        """Close the files. An unfinished pack can be resumed."""
        self._shard.close()
        self._database.close()

    def _open_shard(self) -> None:
        (self._number,) = self._database.execute("SELECT count(*) FROM shards").fetchone()
        self._shard, self._size = (self.folder / shard_name(self._number)).open("wb"), 0

    def _close_shard(self) -> None:
        """Write the shard to the disk, then its rows."""
        self._shard.flush()
        os.fsync(self._shard.fileno())
        self._shard.close()
        path = Path(self._shard.name)
        if not self._size:
            path.unlink()
            return
        entry = (self._number, self._size, sha256_of(path))
        self._database.execute("INSERT INTO shards VALUES (?, ?, ?)", entry)
        self._database.commit()


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as read, atomic_write(target, sync=True) as write:
        shutil.copyfileobj(read, write)
