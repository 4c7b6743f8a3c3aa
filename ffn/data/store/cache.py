"""Download the files of a remote store into a cache folder that many processes share."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from ffn.data.store import remote
from ffn.data.store.layout import MANIFEST, File, StoreError, sha256_of
from ffn.files import atomic_write

_BLOCK = 1 << 20  # bytes


class RemoteFiles:
    """The files of a remote store; each that is opened is downloaded whole on first use.

    A file is written under a temporary name, compared with its SHA-256 and renamed. A process that
    has a shard open holds a shared lock (flock) on it. When the cache is full, the least recently
    opened shard without a lock is deleted.

    Args:
        address: `https://host/store`, `s3://bucket/store`, or any address that fsspec opens.
        cache: Folder for the downloads.
        cache_bytes: Upper bound on the size of the shards in the folder.
    """

    open_shards = 8  # per process; open shards cannot be evicted

    def __init__(self, address: str, cache: Path, cache_bytes: int) -> None:
        self.name, self.cache, self.cache_bytes = address.rstrip("/"), cache, cache_bytes
        self._manifest = b""

    def manifest(self) -> bytes:
        """Download `store.json` and return its content.

        Raises:
            StoreError: if the download fails.
        """
        self._manifest = self._fetch_manifest()
        return self._manifest

    def has_changed(self) -> bool:
        """Whether `store.json` differs from the one that `manifest` returned."""
        try:
            return self._fetch_manifest() != self._manifest
        except StoreError:
            return False

    def holds(self, shard: File) -> bool:
        """Whether a shard is in the cache."""
        return (self.cache / _cached_name(shard)).exists()

    def _fetch_manifest(self) -> bytes:
        try:
            with remote.opened(f"{self.name}/{MANIFEST}") as source:
                return source.read()
        except OSError as error:
            raise StoreError(
                f"{self.name}/{MANIFEST} cannot be downloaded ({remote.why(error)})"
            ) from None

    def index(self, file: File) -> Path:
        """Local path of the index; downloads it if it is not in the cache.

        Raises:
            StoreError: if the download fails or its SHA-256 differs.
        """
        path = self.cache / _cached_name(file)
        self.cache.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if not path.exists() or sha256_of(path) != file.sha256:
                try:
                    with atomic_write(path) as target:
                        self._download(file, target)
                except OSError as error:
                    cause = f"{self.name}/{file.name} cannot be downloaded ({remote.why(error)})"
                    raise StoreError(cause) from None
        return path

    def open(self, shard: File) -> BinaryIO:
        """Open a shard; it stays in the cache until the file is closed.

        Raises:
            OSError: if the download fails, its SHA-256 differs, or the cache is full of open
                shards.
        """
        path = self.cache / _cached_name(shard)
        self.cache.mkdir(parents=True, exist_ok=True)
        file = _open_locked(path)
        if file is None:
            with FileLock(f"{path}.lock"):
                while file is None:  # another process may evict it between download and open
                    file = _open_locked(path) or self._add_shard(shard, path)
        os.utime(path)  # time of the last use, for eviction
        return file

    def _add_shard(self, shard: File, path: Path) -> BinaryIO | None:
        # Not atomic_write: the lock on the part protects it from eviction until it is renamed.
        part = path.with_name(f"{path.name}.part")
        with FileLock(self.cache / "room.lock"):
            self._evict_for(shard)
            target = part.open("w+b", buffering=0)
            _lock(target, wait=True)
            target.truncate(shard.bytes)  # reserves the space
        with target:
            try:
                self._download(shard, target)
                os.fsync(target.fileno())
                os.replace(part, path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        return _open_locked(path)

    def _evict_for(self, shard: File) -> None:
        """Delete unlocked shards, least recently used first, until a shard fits."""
        held = []
        for entry in self.cache.glob("shard-*"):
            if entry.suffix in (".bin", ".part"):
                with suppress(FileNotFoundError):  # a download that ended renames its part
                    status = entry.stat()
                    held.append((status.st_mtime, status.st_size, entry))
        total = sum(size for _, size, _ in held)
        for _, size, entry in sorted(held):
            if total + shard.bytes <= self.cache_bytes and entry.suffix == ".bin":
                continue  # an unlocked part was left by a killed process
            if _delete_unlocked(entry):
                total -= size
        if total + shard.bytes > self.cache_bytes:
            raise OSError(
                f"the cache {self.cache} is limited to {self.cache_bytes / 2**20:.0f} MiB, of "
                f"which {total / 2**20:.0f} MiB are shards in use; {shard.name} needs "
                f"{shard.bytes / 2**20:.0f} MiB. Use a larger cache, fewer workers, or "
                "data.order=pages, which reads few shards at a time"
            )

    def _download(self, file: File, target: BinaryIO) -> None:
        """Copy a file of the store into `target` and check its SHA-256; retry on errors."""
        for attempt in range(1, remote.ATTEMPTS + 1):
            try:
                return self._download_once(file, target)
            except OSError:
                if attempt == remote.ATTEMPTS:
                    raise
                time.sleep(remote.PAUSE * attempt)

    def _download_once(self, file: File, target: BinaryIO) -> None:
        target.seek(0)
        digest, size = hashlib.sha256(), 0
        with remote.opened(f"{self.name}/{file.name}") as source:
            while block := source.read(_BLOCK):
                digest.update(block)
                target.write(block)
                size += len(block)
        if size != file.bytes or digest.hexdigest() != file.sha256:
            raise OSError(
                f"{self.name}/{file.name} differs from its entry in {MANIFEST}: {size} of "
                f"{file.bytes} bytes, SHA-256 {digest.hexdigest()[:16]}…, not {file.sha256[:16]}…"
            )
        target.truncate(size)  # a failed attempt may have been longer


def _cached_name(file: File) -> str:
    """Name of the local copy; the hash distinguishes stores packed again at the same address."""
    stem, suffix = os.path.splitext(file.name)
    return f"{stem}-{file.sha256[:12]}{suffix}"


def _open_locked(path: Path) -> BinaryIO | None:
    """Open a file of the cache with a shared lock; None if it does not exist."""
    while True:
        try:
            file = path.open("rb", buffering=0)
        except FileNotFoundError:
            return None
        fcntl.flock(file, fcntl.LOCK_SH)
        try:
            if os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                return file
        except FileNotFoundError:
            pass
        file.close()  # deleted between opening and locking


def _lock(file: BinaryIO, *, wait: bool) -> bool:
    """Take an exclusive lock; returns whether it succeeded."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _delete_unlocked(path: Path) -> bool:
    """Delete a file of the cache unless it is locked; returns whether it is deleted."""
    try:
        with open(path, "rb") as file:
            if not _lock(file, wait=False):
                return False
            path.unlink()
    except FileNotFoundError:
        return True
    except PermissionError:
        return False
    return True
