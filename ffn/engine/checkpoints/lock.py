"""Lock a run folder, so that one run at a time writes to it."""

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

from ffn.files import write_text

WAIT = 10.0  # seconds for a run that is ending, and its loader workers, to release the lock
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


class RunError(ValueError):
    """A run folder that this run cannot use; the message has the remedy."""


class FolderInUse(RunError):
    """Another run writes to the folder."""


@contextmanager
def lock_folder(
    folder: Path, wait: float = WAIT, option: str = "log.output"
) -> Iterator[str | None]:
    """Create a folder, and lock it with the file ``.lock`` in it.

    Args:
        folder: of a run.
        wait: seconds to wait for another run to end.
        option: that names the folder, for messages.

    Yields:
        A warning if the file system has no locks; else None.

    Raises:
        FolderInUse: another run has it; the message names host, process and time.
        RunError: the folder cannot be created or written.
    """
    lock, owner = FileLock(folder / ".lock", timeout=wait), folder / ".lock.json"
    note = _acquire(lock, folder, owner, option)
    try:
        _write_owner(owner)
        yield note
    finally:
        with suppress(OSError):  # the folder may be missing
            owner.unlink(missing_ok=True)
        lock.release()


def _acquire(lock: BaseFileLock, folder: Path, owner: Path, option: str) -> str | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise FolderInUse(_in_use(folder, owner, option, soft=_is_soft(lock))) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise RunError(
                f"cannot write to {folder}: {error.strerror}; check its permissions, or "
                f"choose another {option}"
            ) from error
    else:
        if not _is_soft(lock):
            return None
    return (
        f"{folder} is on a file system without locks: a second run in this folder cannot be "
        "detected. Do not start one"
    )


def _is_soft(lock: BaseFileLock) -> bool:
    """Whether the existence of the file is the lock: filelock's fallback without flock.

    The lock then changes its class, or, from filelock 4.3 on, knows the process that has it.
    """
    return isinstance(lock, SoftFileLock) or hasattr(lock, "pid")


def _in_use(folder: Path, owner: Path, option: str, *, soft: bool) -> str:
    """The message of `FolderInUse`."""
    try:
        known = json.loads(owner.read_text())
        who = f"process {known['pid']} on {known['host']}, since {known['since']},"
    except (OSError, ValueError, KeyError, TypeError):
        who = "another process"
    text = (
        f"{folder} is in use: {who} trains there. Wait for it, stop it, or choose another {option}"
    )
    if soft:  # a lock file remains when its process is killed
        text += f". If that process has ended, remove {folder / '.lock'}"
    return text


def _write_owner(path: Path) -> None:
    """Write the owner of the lock, for messages; a full disk must not stop a run."""
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
    with suppress(OSError):
        write_text(path, json.dumps(owner))
