"""Write a clip store such that a kill at any moment loses at most the clip being written.

Clips are appended to `shard-….bin.part`, and a line per clip to `pack.journal`. A full shard is
synced and renamed. At the end the index and then `store.json` are written, and the journal is
deleted. The shards of a finished store never change: added clips go into new shards.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ffn.data.store.clip import EncodedClip
from ffn.data.store.layout import (
    CLIP,
    MAGIC,
    MANIFEST,
    File,
    Index,
    Manifest,
    StoreError,
    Unreadable,
    index_name,
    shard_name,
    time_range,
    to_disk,
    write_bytes,
    write_clip_index,
)
from ffn.files import naming, sync_folder

JOURNAL, LOCK, TRANSFER = "pack.journal", "pack.lock", "pack.tmp"
_COLUMNS = ("crc", "frames", "width", "height", "fps", "timed")  # of the index, from EncodedClip


def check_folder(folder: Path) -> None:
    """Raise FileExistsError for a folder that has files, but no store and no unfinished pack."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    others = [n for n in names if n not in (LOCK, TRANSFER) and not n.endswith(".part")]
    if others and not {MANIFEST, JOURNAL} & set(others):
        raise FileExistsError(
            f"{folder} holds {others[0]}, which is not part of a store; move it away, or name a "
            "new folder"
        )


class StoreWriter:
    """Add clips to a new, an unfinished or a finished store.

    Args:
        folder: Folder of the store.
        options: `format`, `short_side` and `quality`, as in the manifest.
        shard_bytes: Maximum size of a shard that holds more than one clip.
        append: Whether clips may be added to a finished store.

    Attributes:
        manifest: Content of `store.json`, plus the shards that were closed since.
        known: Key, start and end of the clips in the store.
        resumed: Whether an unfinished pack is resumed.
        finished: Whether the store is finished and `append` is False.

    Raises:
        StoreError: if the folder holds a store or an unfinished pack with other options.
        FileExistsError: if the folder holds other files.
    """

    def __init__(
        self, folder: Path, options: dict[str, Any], *, shard_bytes: int, append: bool
    ) -> None:
        self.folder, self.shard_bytes = folder, shard_bytes
        for name in (JOURNAL, MANIFEST, "index-*.bin"):
            for part in folder.glob(f".{name}.*.part"):
                part.unlink()  # left by a killed pack
        self._journal_path = folder / JOURNAL
        self._part: BinaryIO | None = None
        self._digest, self._size = hashlib.sha256(), 0  # of the open shard
        self.manifest, self._old_rows, self._old_keys = _finished(folder, options)
        self._rows: list[dict[str, Any]] = []
        header = {"options": to_disk(options), "generation": self.manifest.generation + 1}
        entries = read_journal(self._journal_path)
        if entries and entries[0]["generation"] == self.manifest.generation:
            entries = []  # killed between writing store.json and deleting the journal
            self._journal_path.unlink()
        self.resumed = bool(entries)
        self.finished = bool(self.manifest.generation) and not append and not self.resumed
        if self.finished:
            self._journal = None
        elif self.resumed:
            self._resume(entries, header)
        else:
            self._check_folder()
            write_bytes(self._journal_path, _line(header))
        if not self.finished:
            self._journal = self._journal_path.open("ab", buffering=0)
        old = zip(self._old_keys, map(time_range, self._old_rows), strict=True)
        self.known = {(key, *times) for key, times in old}
        self.known |= {(row["key"], row["start"], row["end"]) for row in self._rows}

    def add(
        self, key: str, start: float | None, end: float | None, label: int, clip: EncodedClip
    ) -> None:
        """Write one clip. A kill after this call does not lose it."""
        with naming(self.folder):
            if self._size and _aligned(self._size) + len(clip.data) > self.shard_bytes:
                self._close_shard()
            if self._part is None:
                self._part = self._part_path().open("wb", buffering=0)
                self._write(MAGIC)
            self._write(bytes(_aligned(self._size) - self._size))
            row = {"key": key, "start": start, "end": end, "label": label}
            row |= {
                "shard": len(self.manifest.shards),
                "offset": self._size,
                "bytes": len(clip.data),
            }
            row |= {name: getattr(clip, name) for name in _COLUMNS}
            self._write(clip.data)
            self._journal.write(_line({"clip": row, "crc": zlib.crc32(clip.data)}))
            self._rows.append(row)
            self.known.add((key, start, end))

    def finish(self, unreadable: Sequence[Unreadable]) -> Manifest:
        """Write the index and `store.json`, and return the manifest.

        Args:
            unreadable: Videos that could not be packed.
        """
        if self._part is not None:
            with naming(self.folder):
                self._close_shard()
        generation = self.manifest.generation + 1
        keys = [*self._old_keys, *(row["key"] for row in self._rows)]
        rows = np.concatenate([self._old_rows, _table(self._rows)])
        failed = {one[:3]: one for one in (*self.manifest.unreadable, *unreadable)}
        self.manifest = replace(
            self.manifest,
            clips=len(rows),
            frames=int(rows["frames"].sum()),
            generation=generation,
            index=write_clip_index(self.folder / index_name(generation), rows, keys),
            unreadable=[one for name, one in failed.items() if name not in self.known],
        )
        write_bytes(self.folder / MANIFEST, self.manifest.to_json().encode())
        self.close()
        self._journal_path.unlink()
        # A reader that opened the previous store.json may still open the previous index.
        (self.folder / index_name(generation - 2)).unlink(missing_ok=True)
        return self.manifest

    def close(self) -> None:
        """Close the files. An unfinished pack can be resumed."""
        for file in (self._part, self._journal):
            if file is not None:
                file.close()
        self._part = self._journal = None

    def _part_path(self) -> Path:
        return self.folder / f"{shard_name(len(self.manifest.shards))}.part"

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while len(view):
            view = view[self._part.write(view) :]
        self._digest.update(data)
        self._size += len(data)

    def _close_shard(self) -> None:
        """Sync the open shard, add it to the journal, and rename it."""
        os.fsync(self._part.fileno())
        self._part.close()
        name = shard_name(len(self.manifest.shards))
        shard = File(name, self._size, self._digest.hexdigest())
        self._journal.write(_line({"shard": asdict(shard)}))
        os.fsync(self._journal.fileno())
        os.replace(self._part_path(), self.folder / name)
        sync_folder(self.folder)
        self.manifest.shards.append(shard)
        self._part, self._digest, self._size = None, hashlib.sha256(), 0

    def _check_folder(self) -> None:
        """Refuse a folder that holds files of something else."""
        ours = {JOURNAL, LOCK, TRANSFER, MANIFEST, *(s.name for s in self.manifest.shards)}
        ours |= {f"{name}.part" for name in (JOURNAL, MANIFEST)}  # written by version 0.1
        names = sorted(entry.name for entry in self.folder.iterdir())
        others = [n for n in names if n not in ours and not n.startswith("index-")]
        if others:
            raise FileExistsError(
                f"{self.folder} holds {others[0]}, which is not part of a finished store; move "
                "it away, or name a new folder"
            )

    def _resume(self, entries: Sequence[dict[str, Any]], header: dict[str, Any]) -> None:
        """Restore the state of the journal, up to the first clip whose bytes are incomplete."""
        if entries[0] != header:
            raise StoreError(
                f"{self.folder} holds an unfinished pack with {entries[0]['options']}, not "
                f"{header['options']}. Use the same options to resume it, or delete "
                f"{self._journal_path} and the shards that are not in {MANIFEST}"
            )
        count = len(self.manifest.shards)
        self.manifest.shards += [File(**entry["shard"]) for entry in entries if "shard" in entry]
        for shard in self.manifest.shards[count:]:
            self._check_closed(shard)

        kept = []
        for entry in entries:
            if "clip" in entry:
                row = entry["clip"]
                if row["shard"] == len(self.manifest.shards) and not self._holds(row, entry["crc"]):
                    break
                self._rows.append(row)
            kept.append(entry)
        self._reopen_part()
        write_bytes(self._journal_path, b"".join(map(_line, kept)))

    def _check_closed(self, shard: File) -> None:
        path = self.folder / shard.name
        part = path.with_name(f"{path.name}.part")
        if part.exists() and not path.exists():
            os.replace(part, path)
        if not path.exists() or path.stat().st_size != shard.bytes:
            raise StoreError(
                f"{path} of the unfinished pack is missing or truncated. To start again, delete "
                f"{self._journal_path} and the shards that are not in {MANIFEST}"
            )

    def _holds(self, row: dict[str, Any], crc: int) -> bool:
        """Whether the open shard contains all bytes of a clip."""
        if not self._part_path().exists():
            return False
        with self._part_path().open("rb") as file:
            file.seek(row["offset"])
            data = file.read(row["bytes"])
        return len(data) == row["bytes"] and zlib.crc32(data) == crc

    def _reopen_part(self) -> None:
        """Reopen the open shard after its last complete clip."""
        last = self._rows[-1] if self._rows else None
        if last is None or last["shard"] < len(self.manifest.shards):
            self._part_path().unlink(missing_ok=True)
            return
        self._part = self._part_path().open("r+b", buffering=0)
        self._part.truncate(last["offset"] + last["bytes"])
        while block := self._part.read(1 << 20):
            self._digest.update(block)
            self._size += len(block)


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The entries of a journal up to the first damaged one; empty if there is no journal."""
    entries = []
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n"):
            break
        entries.append(entry)
    return entries


def _finished(folder: Path, options: dict[str, Any]) -> tuple[Manifest, np.ndarray, list[str]]:
    """Manifest, rows and keys of the existing store; empty ones if there is none."""
    path = folder / MANIFEST
    if not path.exists():
        return Manifest(**options), np.zeros(0, CLIP), []
    manifest = Manifest.from_json(path.read_bytes(), str(path))
    for name, wanted in options.items():
        found = getattr(manifest, name)
        if found != wanted:
            raise StoreError(
                f"{folder} is a store with {name} {found}, not {wanted}. Use {name} {found} to "
                "add to it, or name another folder"
            )
    index = Index(folder / manifest.index.name, manifest)
    return manifest, np.array(index.rows), [index.key(row) for row in index.rows]


def _table(rows: Sequence[dict[str, Any]]) -> np.ndarray:
    """Rows of the index from rows of the journal, without the keys."""
    table = np.zeros(len(rows), CLIP)
    for position, row in enumerate(rows):
        for name in CLIP.names:
            if not name.startswith("key_"):
                table[name][position] = np.nan if row[name] is None else row[name]
    return table


def _aligned(size: int) -> int:
    return -(-size // 8) * 8


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry).encode() + b"\n"
