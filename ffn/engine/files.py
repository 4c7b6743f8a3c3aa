"""Files that are there whole, or as they were before."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EBADF)


def part_of(path: Path) -> Path:
    """The name under which this process writes a file until it is whole."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk, where the system can do that.

    Raises:
        OSError: the disk fails.
    """
    if os.name == "nt":  # which has no such call
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def replace_text(path: Path, text: str) -> None:
    """Write a small text file; who reads it sees the old one or the new one.

    Raises:
        OSError: it cannot be written; nothing unfinished is left.
    """
    part = part_of(path)
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
