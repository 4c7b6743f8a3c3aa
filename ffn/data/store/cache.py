"""The files of a store behind an address, kept in a cache folder that many processes share."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock

from ffn.data.store.layout import MANIFEST, File, StoreError, sha256_of

try:
    import fcntl
except ImportError:  # not on Windows, where an open file cannot be deleted anyway
    fcntl = None

ATTEMPTS = 3  # to fetch a file
PAUSE = 1.0  # seconds after the first attempt that failed, one more after each further
TIMEOUT = 60  # seconds without a byte
_BLOCK = 1 << 20  # bytes


class RemoteFiles:
    """A store behind an address, whose files are fetched whole on first use and kept.

    Each file is written under a temporary name, compared with its SHA-256 and renamed. Shards that
    some process holds open carry a shared lock (flock); when the cache is full, the shard that was
    opened longest ago and carries none is deleted.

    Args:
        address: As `https://host/store` or `s3://bucket/store`: whatever fsspec opens.
        cache: Folder for the copies.
        cache_bytes: Bound on the shards in it.
    """

    open_shards = 8  # at a time, in one process: those cannot leave the cache

    def __init__(self, address: str, cache: Path, cache_bytes: int) -> None:
        self.name, self.cache, self.cache_bytes = address.rstrip("/"), cache, cache_bytes

    def manifest(self) -> bytes:
        """The bytes of `store.json`, fetched anew.

        Raises:
            StoreError: if that is not possible.
        """
        try:
            with _opened(f"{self.name}/{MANIFEST}") as source:
                return source.read()
        except OSError as error:
            raise StoreError(f"{self.name}/{MANIFEST} cannot be fetched ({_why(error)})") from None

    def index(self, file: File) -> Path:
        """Local path of the index, fetched if need be.

        Raises:
            StoreError: if that is not possible, or something else came.
        """
        path = self.cache / _cached_name(file)
        self.cache.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if not path.exists() or sha256_of(path) != file.sha256:
                part = path.with_name(f"{path.name}.part")
                try:
                    with part.open("wb") as target:
                        self._fetch(file, target)
                except OSError as error:
                    cause = f"{self.name}/{file.name} cannot be fetched ({_why(error)})"
                    raise StoreError(cause) from None
                os.replace(part, path)
        return path

    def open(self, shard: File) -> BinaryIO:
        """Open a shard, fetched if need be; it stays in the cache until the file is closed.

        Raises:
            OSError: if it cannot be fetched, something else came, or the cache is full of shards
                in use.
        """
        path = self.cache / _cached_name(shard)
        self.cache.mkdir(parents=True, exist_ok=True)
        file = _open_locked(path)
        if file is None:
            with FileLock(f"{path}.lock"):
                while file is None:  # it may be evicted as soon as it is there
                    file = _open_locked(path) or self._download(shard, path)
        os.utime(path)  # the last use, for eviction
        return file

    def _download(self, shard: File, path: Path) -> BinaryIO | None:
        part = path.with_name(f"{path.name}.part")
        with FileLock(self.cache / "room.lock"):
            self._make_room(shard)
            target = part.open("w+b", buffering=0)
            _lock(target, wait=True)
            target.truncate(shard.bytes)  # counts as taken from now on
        with target:
            try:
                self._fetch(shard, target)
                os.fsync(target.fileno())
                os.replace(part, path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        return _open_locked(path)

    def _make_room(self, shard: File) -> None:
        """Delete what nobody uses, oldest first, until a shard fits."""
        held = [entry for entry in self.cache.glob("shard-*") if entry.suffix in (".bin", ".part")]
        held.sort(key=lambda entry: entry.stat().st_mtime)
        total = sum(entry.stat().st_size for entry in held)
        for entry in held:
            if total + shard.bytes <= self.cache_bytes and entry.suffix == ".bin":
                continue  # a part that nobody writes is what a killed process left
            size = entry.stat().st_size
            if _delete_unlocked(entry):
                total -= size
        if total + shard.bytes > self.cache_bytes:
            raise OSError(
                f"the cache {self.cache} may hold {self.cache_bytes / 2**20:.0f} MiB, and "
                f"{total / 2**20:.0f} MiB of it are shards in use; {shard.name} needs "
                f"{shard.bytes / 2**20:.0f} MiB. Give a larger cache, fewer workers, or an order "
                "by pages (data.order=pages), which uses few shards at a time"
            )

    def _fetch(self, file: File, target: BinaryIO) -> None:
        """Copy a file of the store into `target`, again if that fails, and compare its hash."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._fetch_once(file, target)
            except OSError:
                if attempt == ATTEMPTS:
                    raise
                time.sleep(PAUSE * attempt)

    def _fetch_once(self, file: File, target: BinaryIO) -> None:
        target.seek(0)
        digest, size = hashlib.sha256(), 0
        with _opened(f"{self.name}/{file.name}") as source:
            while block := source.read(_BLOCK):
                digest.update(block)
                target.write(block)
                size += len(block)
        if size != file.bytes or digest.hexdigest() != file.sha256:
            raise OSError(
                f"{self.name}/{file.name} is not the file that {MANIFEST} names: {size} of "
                f"{file.bytes} bytes, SHA-256 {digest.hexdigest()[:16]}…, not {file.sha256[:16]}…"
            )


def _cached_name(file: File) -> str:
    """Name of the copy: a store that was packed anew at the same address has others."""
    stem, suffix = os.path.splitext(file.name)
    return f"{stem}-{file.sha256[:12]}{suffix}"


@contextmanager
def _opened(address: str) -> Iterator[BinaryIO]:
    """A remote file, read from its start to its end.

    Raises:
        StoreError: if a library for this kind of address is missing.
        OSError: if the file cannot be read.
    """
    import fsspec

    try:
        options: dict[str, Any] = {}
        if streamed := address.startswith(("http://", "https://")):
            import aiohttp

            timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT, sock_read=TIMEOUT)
            options["client_kwargs"] = {"timeout": timeout}
        system, path = fsspec.core.url_to_fs(address, **options)
    except (ImportError, ValueError) as error:
        raise StoreError(
            f"{address} cannot be opened: {error}. For http, pip install 'frame-flexible[store]'; "
            "for other addresses, the file system that fsspec names"
        ) from None
    try:
        # A block size of 0 reads a web page from start to end, which every server can do.
        with system.open(path, "rb", **({"block_size": 0} if streamed else {})) as source:
            yield source
    except OSError:
        raise
    except Exception as error:
        # The libraries below fsspec (aiohttp, botocore, …) have errors of their own.
        raise OSError(f"{type(error).__name__}: {error}") from error


def _open_locked(path: Path) -> BinaryIO | None:
    """Open a file of the cache under a shared lock; None if it is not there."""
    while True:
        try:
            file = path.open("rb", buffering=0)
        except FileNotFoundError:
            return None
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_SH)
        try:
            if os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                return file
        except FileNotFoundError:
            pass
        file.close()  # deleted between opening and locking


def _lock(file: BinaryIO, *, wait: bool) -> bool:
    """Lock a file against all others; whether that worked."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _delete_unlocked(path: Path) -> bool:
    """Delete a file of the cache unless somebody has it open; whether it is gone."""
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


def _why(error: OSError) -> str:
    return str(error) or type(error).__name__
