"""Open and read the shards of a store; each process keeps a few of them open.

Shards are read by position, so many processes can read at once without a lock.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ffn.commands import command
from ffn.data.store.layout import MANIFEST, File, StoreError

if TYPE_CHECKING:
    from ffn.data.store.cache import RemoteFiles


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
                f"{self.name} holds no clip store (no {MANIFEST}); {advice} with {command('pack')}"
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

    A forked process opens its own files; pickling leaves the open files out.

    Args:
        files: Opens the shards.
        shards: All shards of the store, by number.
    """

    def __init__(self, files: LocalFiles | RemoteFiles, shards: list[File]) -> None:
        self.files, self.shards = files, shards
        self._open: OrderedDict[int, BinaryIO] = OrderedDict()
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files, "shards": self.shards}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    def read(self, number: int, offset: int, size: int) -> bytearray:
        """Read bytes of a shard.

        Raises:
            OSError: if the shard cannot be opened or read.
            EOFError: if the shard is too short.
        """
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

    def _file(self, number: int) -> BinaryIO:
        if self._process != os.getpid():
            for file in self._open.values():
                file.close()
            self._open, self._process = OrderedDict(), os.getpid()
        file = self._open.pop(number, None) or self.files.open(self.shards[number])
        self._open[number] = file
        if len(self._open) > self.files.open_shards:
            self._open.popitem(last=False)[1].close()
        return file


def _read_into(descriptor: int, view: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):  # missing in Python built for macOS 10
        return os.preadv(descriptor, [view], offset)
    data = os.pread(descriptor, len(view), offset)
    view[: len(data)] = data
    return len(data)
