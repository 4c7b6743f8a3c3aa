"""Write files atomically: a reader sees the old file or the complete new one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

# What file systems without a sync of folders answer.
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EBADF)


def part_of(path: Path) -> Path:
    """The hidden file, ``.NAME.PID.part``, in which this process writes ``path``."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


@contextmanager
def atomic_write(path: Path, mode: str = "w+b", *, sync: bool = False) -> Iterator[IO[Any]]:
    """Open a temporary file next to ``path``; replace ``path`` with it on success.

    On any exception the temporary file is removed and ``path`` keeps its content.

    Args:
        path: the file; its folder must exist.
        mode: as for ``open``, binary or text (UTF-8).
        sync: write the data and the folder entry to the disk before returning.

    Yields:
        The open temporary file.

    Raises:
        OSError: the file cannot be written.
    """
    part = part_of(path)
    encoding = None if "b" in mode else "utf-8"
    try:
        part.unlink(missing_ok=True)  # left by a killed process with the same id; may be a link
        with part.open(mode, encoding=encoding) as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(part, path)
        if sync:
            sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str, *, sync: bool = False) -> None:
    """Write a text file (UTF-8) atomically; arguments and errors as :func:`atomic_write`."""
    with atomic_write(path, "w", sync=sync) as file:
        file.write(text)


def sync_folder(folder: Path) -> None:
    """Write the entries of a folder to the disk, where the file system supports it.

    Raises:
        OSError: the disk fails.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
