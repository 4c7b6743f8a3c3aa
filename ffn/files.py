"""Write files atomically, and explain errors of files.

A reader of a file that is written here sees the old file or the complete new one.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any


def part_of(path: Path) -> Path:
    """The hidden file, ``.NAME.PID.part``, in which this process writes ``path``."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


@contextmanager
def atomic_write(path: Path, mode: str = "w+b", *, sync: bool = False) -> Iterator[IO[Any]]:
    """Open a temporary file next to ``path``; replace ``path`` with it on success.

    On any exception the temporary file is removed and ``path`` keeps its content.

    Args:
        path: the file; its folder must exist.
        mode: as for ``open``, binary or text (UTF-8; file names that are not keep their bytes).
        sync: write the data and the folder entry to the disk before returning.

    Yields:
        The open temporary file.

    Raises:
        OSError: the file cannot be written; ``filename`` is its path.
    """
    part = part_of(path)
    as_text = {} if "b" in mode else {"encoding": "utf-8", "errors": "surrogateescape"}
    try:
        part.unlink(missing_ok=True)  # left by a killed process with the same id; may be a link
        with part.open(mode, **as_text) as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(part, path)
        if sync:
            sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(part)):
            error.filename = str(path)  # a full disk names no file
        raise


def refuse_existing(
    paths: Iterable[Path], overwrite: bool, *, inputs: Iterable[str | Path] = ()
) -> None:
    """Raise FileExistsError for a file that a call would replace, unless it may.

    What the call reads (`inputs`) is never replaced.
    """
    for path in filter(Path.exists, paths):
        if not overwrite:
            raise FileExistsError(
                f"{path} exists; choose another name, or overwrite it: overwrite=True in Python, "
                "--overwrite in a command"
            )
        if any(os.path.exists(one) and os.path.samefile(one, path) for one in inputs):
            raise FileExistsError(f"{path} is read by the same call; choose another name")


def write_text(path: Path, text: str, *, sync: bool = False) -> None:
    """Write a text file (UTF-8) atomically; arguments and errors as :func:`atomic_write`."""
    with atomic_write(path, "w", sync=sync) as file:
        file.write(text)


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> Path:
    """Write a CSV file (UTF-8) atomically, the header first; errors as :func:`atomic_write`.

    File names that are not UTF-8 keep their bytes.
    """
    with atomic_write(path, "w") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return path


def make_writable(folder: Path) -> None:
    """Make a folder and try to write to it, before work whose result it will hold.

    Raises:
        OSError: it cannot be made, or no file can be written to it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    attempt = part_of(folder / "attempt")
    attempt.touch()
    attempt.unlink(missing_ok=True)  # ids of processes on other machines may be equal


def home() -> Path:
    """The folder of downloads: the environment variable ``FFN_HOME``, or ``~/.cache/ffn``."""
    return Path(os.environ.get("FFN_HOME") or "~/.cache/ffn").expanduser()


def sha256_of(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file, 64 hex digits."""
    import pooch

    return pooch.file_hash(os.fspath(path))


def shipped(folder: str) -> Path:
    """A folder that ships with ffn, such as "configs", of an installed package or a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / folder
    return installed if installed.is_dir() else package.parent / folder


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put a path into errors of the system that name none, as those of a full disk.

    Raises:
        OSError: as raised inside, with ``filename``.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def printable(text: str) -> str:
    """A text whose file names that are not UTF-8 a console does not refuse, as ``\\udcff.mp4``."""
    return text.encode("utf-8", "backslashreplace").decode()


def without_password(text: str) -> str:
    """A text whose addresses have no name and password of a user, for messages and results.

    All before the last @ is left out, since a password may contain @, / and ?.

    >>> without_password("rtsp://admin:s/e@ret@camera/1?token=secret")
    'rtsp://camera/1?token=***'
    >>> without_password("https://host:80/photo@2x.mp4")
    'https://host:80/photo@2x.mp4'
    """
    # After a plain host of http, an @ belongs to the name of a file.
    streams, pages = r"(?<!https)(?<!http)://.*@", r"://(?![^/@:\s]+(:\d+)?/).*@"
    text = re.sub(f"(?i){streams}|{pages}", "://", text)
    return re.sub(r"(?i)([?&](?:pass|passwd|password|pwd|token)=)[^&\s]+", r"\1***", text)


def explain(error: BaseException) -> str:
    """The message of an error, without passwords; of an error of the system, path and meaning."""
    message = str(error)
    if isinstance(error, OSError) and error.strerror is not None:
        parts = (error.filename, error.strerror)
        message = ": ".join(str(part) for part in parts if part is not None)
    return without_password(message)


def is_for_users(error: BaseException) -> bool:
    """Whether the message of an error names the cause and the remedy: ours, and those of files."""
    if isinstance(error, ImportError) and (error.name or "").startswith("ffn."):
        return False  # a fault of ours; other packages may not be installed
    ours = type(error).__module__.startswith("ffn.")
    return ours or isinstance(error, (ValueError, OSError, ImportError, FloatingPointError))


def sync_folder(folder: Path) -> None:
    """Write the entries of a folder to the disk, where the file system supports it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
