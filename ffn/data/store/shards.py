"""Open and read the shards of a store; each process keeps a few of them open.

Shards are read by position, so many processes can read at once without a lock.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ffn.data.store.layout import MANIFEST, File, StoreError

if TYPE_CHECKING:
    from ffn.data.store.cache import RemoteFiles


class Span(NamedTuple):
    """Bytes of a shard: first byte, length, and `zlib.crc32` of the bytes."""

    offset: int
    size: int
    crc: int

    @property
    def end(self) -> int:
        """The byte after the last one."""
        return self.offset + self.size


class ChecksumError(OSError):
    """Bytes of a shard with another checksum than stored for them; the text says more, if any."""


class LocalFiles:
    """The files of a store in a local folder.

    Args:
        folder: The folder.
    """

    open_shards = 64  # per process

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.name = os.fspath(folder)

    def manifest(self) -> bytes:
        """The content of `store.json`.

        Raises:
            StoreError: if the file does not exist.
        """
        path = Path(self.name) / MANIFEST
        if not path.is_file():
            unfinished = path.with_name("pack.journal").exists()
            advice = "finish the interrupted pack" if unfinished else "make one"
            raise StoreError(
                f"{self.name} holds no clip store (no {MANIFEST}); {advice} with ffn pack"
            )
        return path.read_bytes()

    def index(self, file: File) -> Path:
        """Local path of the index."""
        return Path(self.name) / file.name

    def open(self, shard: File) -> BinaryIO:
        """Open a shard.

        Raises:
            OSError: if the shard cannot be opened.
        """
        return (Path(self.name) / shard.name).open("rb", buffering=0)


class OpenShards:
    """The most recently used shards, kept open by this process.

    A forked process opens its own files; pickling leaves the open files out. Several threads may
    read at once.

    Args:
        files: Opens the shards.
        shards: All shards of the store, by number.
    """

    def __init__(self, files: LocalFiles | RemoteFiles, shards: list[File]) -> None:
        self.files, self.shards = files, shards
        self._start()

    def _start(self) -> None:
        """Open nothing yet, and own the lock; also in a forked process."""
        self._open: OrderedDict[int, _SharedFile] = OrderedDict()
        self._threads = threading.Lock()
        self._process = os.getpid()

    def _lock(self) -> threading.Lock:
        """The lock of the threads of this process."""
        if self._process != os.getpid():
            self._start()
        return self._threads

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files, "shards": self.shards}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    def read(self, number: int, spans: Sequence[Span], *, check: bool) -> Iterator[bytearray]:
        """Read parts of a shard, one after another.

        Args:
            number: Number of the shard.
            spans: The parts, in ascending order.
            check: Compare the checksums.

        Raises:
            ChecksumError: if a checksum differs.
            OSError: if the shard cannot be opened or read.
            EOFError: if the shard is too short.
        """
        for span in spans:
            data = self._bytes(number, span.offset, span.size)
            if check and zlib.crc32(data) != span.crc:
                raise ChecksumError
            yield data

    def read_header(self, number: int, span: Span) -> bytes:
        """Read the header of a clip and compare its checksum; raises as `read`."""
        return bytes(next(self.read(number, [span], check=True)))

    def _bytes(self, number: int, offset: int, size: int) -> bytearray:
        file = self._file(number)
        if offset + size > os.fstat(file.fileno()).st_size:  # before the memory is asked for
            raise EOFError
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            count = _read_into(file.fileno(), view[done:], offset + done)
            if count == 0:
                raise EOFError
            done += count
        return data

    def _file(self, number: int) -> _SharedFile:
        with self._lock():
            file = self._open.pop(number, None)
        file = file or _SharedFile(self.files.open(self.shards[number]))
        with self._lock():
            self._open[number] = file
            if len(self._open) > self.files.open_shards:
                self._open.popitem(last=False)
        return file


class _SharedFile:
    """An open shard; closed when no thread refers to it any more."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.fileno = file, file.fileno

    def __del__(self) -> None:
        self._file.close()


def _read_into(descriptor: int, view: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):  # missing in Python built for macOS 10
        return os.preadv(descriptor, [view], offset)
    data = os.pread(descriptor, len(view), offset)
    view[: len(data)] = data
    return len(data)
