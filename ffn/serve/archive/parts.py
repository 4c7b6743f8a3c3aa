"""The rows that the processes of an archive run have computed so far, in a folder."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import AcquireReturnProxy, FileLock, Timeout

from ffn.files import write_text

SETTINGS = "settings.json"
ROWS = "rows-*.jsonl"  # a file per process; a line per chunk


class Parts:
    """A folder with the rows of complete chunks.

    A chunk is a line of JSON. Its process writes it at once and never changes it; a line that a
    stopped process has cut does not count.

    Args:
        folder: of the parts; may not exist yet.
        chunks: videos of each chunk.
    """

    def __init__(self, folder: Path, chunks: Sequence[range]) -> None:
        self.folder, self.chunks = folder, chunks
        self._lock = FileLock(folder / "lock")

    def lock(self) -> AcquireReturnProxy:
        """Make the folder, and keep other runs out until the lock is released.

        Raises:
            FileExistsError: another run uses the folder.
            OSError: it cannot be made.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            return self._lock.acquire(timeout=0)
        except Timeout:
            raise FileExistsError(
                f"{self.folder} is in use by another process; wait for it, or choose another output"
            ) from None

    def settings(self) -> dict[str, Any] | None:
        """The settings of the run; None for a new one.

        Raises:
            ValueError: the file is damaged.
        """
        path = self.folder / SETTINGS
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}); remove {self.folder}") from None

    def write_settings(self, settings: dict[str, Any]) -> None:
        """Keep the settings for later calls."""
        write_text(self.folder / SETTINGS, json.dumps(settings, indent=1) + "\n", sync=True)

    def places(self) -> dict[int, tuple[Path, int]]:
        """File and position of each complete chunk."""
        found: dict[int, tuple[Path, int]] = {}
        for path in sorted(self.folder.glob(ROWS)):
            position = 0
            with path.open("rb") as file:
                for line in file:
                    number, rows = _chunk_of(line)
                    if 0 <= number < len(self.chunks) and rows == len(self.chunks[number]):
                        found.setdefault(number, (path, position))
                    position += len(line)
        return found

    def read(self, places: dict[int, tuple[Path, int]]) -> Iterator[dict[str, Any]]:
        """The entries of all chunks, in their order."""
        with ExitStack() as stack:
            paths = {path for path, _ in places.values()}
            files = {path: stack.enter_context(path.open("rb")) for path in paths}
            for number in range(len(self.chunks)):
                path, position = places[number]
                files[path].seek(position)
                yield json.loads(files[path].readline())

    @contextmanager
    def append(self) -> Iterator[Callable[[int, dict[str, Any]], None]]:
        """Open a new file of this process; gives a function that appends the rows of a chunk.

        The function takes the number of the chunk and its entry, and raises OSError if the disk is
        full.
        """
        handle, _ = tempfile.mkstemp(prefix="rows-", suffix=".jsonl", dir=self.folder)
        with os.fdopen(handle, "wb") as file:

            def add(chunk: int, entry: dict[str, Any]) -> None:
                file.write(json.dumps({"chunk": chunk, **entry}).encode() + b"\n")
                file.flush()

            yield add

    def remove(self) -> None:
        """Remove the files, release the lock, and remove the folder unless it has other files."""
        for path in [*self.folder.glob(ROWS), self.folder / SETTINGS]:
            path.unlink(missing_ok=True)
        self._lock.release()  # NFS keeps files that are open, under another name
        Path(self._lock.lock_file).unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()


def _chunk_of(line: bytes) -> tuple[int, int]:
    """Number and rows of a chunk; -1 for a line that is cut."""
    try:
        entry = json.loads(line)
        return int(entry["chunk"]), len(entry["rows"])
    except (ValueError, KeyError, TypeError):
        return -1, 0
