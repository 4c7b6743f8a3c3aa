"""One run at a time in a folder: a lock that the system frees when its process dies."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from ffn.engine.config import ConfigError
from ffn.files import write_text

WAIT = 10.0  # seconds for a run that is just dying, with its loader's processes, to let go
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


class FolderInUse(ConfigError):
    """Another run writes to the folder."""


@contextmanager
def lock_folder(folder: Path, wait: float = WAIT) -> Iterator[str | None]:
    """Own a folder, which is made if need be, by the file ``.lock`` in it.

    Args:
        folder: of a run.
        wait: seconds to wait for another run to end.

    Yields:
        What to print if the file system has no locks, so that another run would not be noticed.

    Raises:
        FolderInUse: another run has it; the message names host, process and time.
        ConfigError: the folder cannot be made or written to.
    """
    lock, owner = FileLock(folder / ".lock", timeout=wait), folder / ".lock.json"
    note = _acquire(lock, folder, owner)
    try:
        _write_owner(owner)
        yield note
    finally:
        with suppress(OSError):  # as where the folder was taken away meanwhile
            owner.unlink(missing_ok=True)
        lock.release()


def _acquire(lock: BaseFileLock, folder: Path, owner: Path) -> str | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise FolderInUse(_in_use(folder, owner, soft=isinstance(lock, SoftFileLock))) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise ConfigError(
                f"cannot write to {folder}: {error.strerror}; check who may write there, or "
                "choose another log.output"
            ) from error
    else:
        if not isinstance(lock, SoftFileLock):  # which filelock 3 takes away from its owner
            return None
    return (
        f"{folder} is on a file system without locks: a second run that writes there may not be "
        "noticed. Start none"
    )


def _in_use(folder: Path, owner: Path, *, soft: bool) -> str:
    """Who has the folder, as far as known, and what to do."""
    try:
        known = json.loads(owner.read_text())
        who = f"process {known['pid']} on {known['host']}, since {known['since']},"
    except (OSError, ValueError, KeyError, TypeError):
        who = "another process"
    text = (
        f"{folder} is in use: {who} trains there. Wait for it, stop it, or choose another "
        "log.output"
    )
    if soft:  # filelock's way without flock: a file, which outlives its owner
        text += f". If that process is dead, remove {folder / '.lock'}"
    return text


def _write_owner(path: Path) -> None:
    """Who holds the lock, for the message to those who come; a full disk must not stop a run."""
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
    with suppress(OSError):
        write_text(path, json.dumps(owner))
