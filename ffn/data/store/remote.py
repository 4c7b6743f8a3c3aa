"""Read the files of a clip store, in a local folder or at an address that fsspec opens.

From an address, such as https:// or s3://, the index and the shards are downloaded whole on first
use, compared with their SHA-256, and kept in a folder that many processes share. With a limit on
that folder, the first shards are kept; of the others, frames are read by ranges of bytes and
compared with their CRC-32, so that no shard is downloaded again in every epoch.
"""

from __future__ import annotations

import errno
import itertools
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock

from ffn.data.decoding import VideoError
from ffn.data.store.layout import MANIFEST, StoreError, shard_name
from ffn.files import atomic_write, part_of, sha256_of, without_password

TIMEOUT = 60  # seconds without data, of http
WAITS = (1, 2, 4, 8, 16)  # seconds before each further attempt
GAP = 1 << 16  # bytes between two parts that one request reads
PASSING = (408, 429)  # among the errors 4xx of http: timeout, too many requests

Bytes = bytes | memoryview
_log = logging.getLogger(__name__)


class Part(NamedTuple):
    """Bytes of a shard, and their CRC-32."""

    start: int
    end: int
    crc: int


class Files:
    """The files of a store.

    Args:
        name: Folder or address of the store.
        cache: Folder of the downloads from an address.
    """

    def __init__(self, name: str, cache: Path) -> None:
        self.name, self.cache = name, cache
        self._not_kept: frozenset[str] = frozenset()

    def manifest(self) -> bytes:
        """The content of `store.json`.

        Raises:
            StoreError: if it does not exist, or cannot be downloaded.
        """
        if "://" in self.name:
            return self._request(MANIFEST, lambda system, address: system.cat_file(address))
        try:
            return Path(self.name, MANIFEST).read_bytes()
        except OSError as error:
            raise StoreError(
                f"{self.name} holds no finished clip store: {MANIFEST} cannot be read ({error}); "
                "run ffn pack"
            ) from None

    def limit(self, shards: Mapping[int, tuple[str, int]], size: int) -> None:
        """Keep the first shards, up to a number of bytes; remove the others from the cache.

        Args:
            shards: SHA-256 and length of each, by number.
            size: Bytes.

        Raises:
            StoreError: if other shards remain, and the server does not send ranges of a file.
        """
        if "://" not in self.name:
            return
        names = {shard_name(number): shards[number] for number in sorted(shards)}
        totals = itertools.accumulate(length for _, length in names.values())
        kept = [name for name, total in zip(names, totals, strict=True) if total <= size]
        self._not_kept = frozenset(names) - {*kept}
        local = {self._local(name, names[name][0]) for name in kept}
        for path in {*self.cache.glob("*-shard-*.bin")} - local:
            with suppress(OSError):  # Windows removes no file that is open
                path.unlink()
        if not self._not_kept:
            return
        first = self._request(MANIFEST, lambda fs, address: fs.cat_file(address, start=0, end=1))
        if len(first) != 1:
            raise StoreError(
                f"{self.name}: the server sends whole files for requests of ranges, but "
                f"{len(self._not_kept)} of {len(shards)} shards may not be kept. Raise "
                "data.store_cache_gib, or use another server, as nginx or S3"
            )

    def path(self, name: str, sha256: str) -> Path:
        """Path of the index or of a shard that is kept; of an address, in the cache.

        Raises:
            StoreError: if it cannot be downloaded, or has another SHA-256 than the store says.
        """
        if "://" not in self.name:
            return Path(self.name, name)
        path = self._local(name, sha256)
        if not path.exists():
            self.cache.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{path}.lock"):
                if not path.exists():
                    for part in self.cache.glob(f".{path.name}.*.part"):
                        part.unlink()  # of a process that was killed
                    self._request(name, partial(_download, sha256=sha256, path=path))
        return path

    @contextmanager
    def reader(
        self, name: str, sha256: str, parts: Sequence[Part]
    ) -> Iterator[Callable[[Part], Bytes]]:
        """A function that reads and verifies one of these parts of a shard, in ascending order.

        Raises:
            StoreError: if they cannot be downloaded.
            OSError: if the shard is truncated or damaged; raised by the function.
        """
        if name in self._not_kept:
            yield self._fetch(name, parts).__getitem__
            return
        try:
            file = self.path(name, sha256).open("rb")
        except FileNotFoundError:  # another process, with a lower limit, has removed it
            file = self.path(name, sha256).open("rb")

        def read(part: Part) -> bytes:
            file.seek(part.start)
            return _verified(file.read(part.end - part.start), part)

        with file:
            yield read

    def _local(self, name: str, sha256: str) -> Path:
        return self.cache / f"{sha256[:16]}-{name}"

    def _request(self, name: str, attempt: Callable[[Any, str], Any]) -> Any:
        """The result of a function of a file system and the address of a file; see `repeat`."""
        address = f"{self.name}/{name}"
        try:
            return repeat(address, lambda: attempt(_file_system(address), address), WAITS)
        except OSError as error:
            raise StoreError(f"{without_password(address)} {error}") from None

    def _fetch(self, name: str, parts: Sequence[Part]) -> dict[Part, Bytes]:
        """Parts of a file, by requests of ranges; an attempt repeats only those that failed."""
        found: dict[Part, Bytes] = {}

        def attempt(system: Any, address: str) -> None:
            spans = _spans([part for part in parts if part not in found])
            starts, ends = [s[0].start for s in spans], [s[-1].end for s in spans]
            answers = system.cat_ranges([address] * len(spans), starts, ends, on_error="return")
            errors = []
            for span, answer in zip(spans, answers, strict=True):
                try:
                    found.update(_split(span, answer))
                except Exception as error:
                    errors.append(error)
            if errors:
                raise errors[0]

        self._request(name, attempt)
        return found


def _spans(parts: Sequence[Part]) -> list[list[Part]]:
    """Groups of neighbouring parts, each for one request."""
    spans: list[list[Part]] = []
    for part in parts:
        if spans and part.start - spans[-1][-1].end <= GAP:
            spans[-1].append(part)
        else:
            spans.append([part])
    return spans


def _split(span: Sequence[Part], answer: bytes | Exception) -> dict[Part, Bytes]:
    """The parts of an answer to a request, verified."""
    if isinstance(answer, Exception):
        raise answer
    start, size = span[0].start, span[-1].end - span[0].start
    if len(answer) != size:
        raise OSError(f"{len(answer)} bytes came; expected {size}")
    view = memoryview(answer)
    return {part: _verified(view[part.start - start : part.end - start], part) for part in span}


def _verified(data: Any, part: Part) -> Any:
    if len(data) < part.end - part.start:
        raise OSError("the shard is truncated")
    if zlib.crc32(data) != part.crc:
        raise OSError("a checksum differs")
    return data


def _download(system: Any, address: str, *, sha256: str, path: Path) -> None:
    with atomic_write(path):
        system.get_file(address, str(part_of(path)))
        found = sha256_of(part_of(path))
        if found != sha256:
            raise OSError(f"its SHA-256 is {found[:16]}…, the store says {sha256[:16]}…")


def repeat(address: str, attempt: Callable[[], Any], waits: Sequence[float]) -> Any:
    """The result of a function; it is called again after errors of a connection or a server.

    Args:
        address: For messages.
        attempt: The function.
        waits: Seconds before each further call.

    Raises:
        OSError: if an error will stay, as that of a missing file, or the last attempt fails.
        VideoError: as raised by the function.
    """
    for number, wait in enumerate((*waits, None), 1):
        try:
            return attempt()
        except VideoError:
            raise
        except Exception as error:  # each file system has its own classes
            message = _message(error)
            if wait is None or _stays(error):
                raise OSError(
                    f"cannot be downloaded: {message}, in attempt {number}. Check the connection "
                    "and the files at the address, and run again"
                ) from error
            tries = f"attempt {number + 1} of {len(waits) + 1} in {wait} s"
            _log.warning("%s: %s; %s", *map(without_password, (address, message)), tries)
            time.sleep(wait)
    raise AssertionError


def _stays(error: Exception) -> bool:
    """Whether another attempt would fail, too."""
    status = getattr(error, "status", None)  # of aiohttp
    status = status or getattr(getattr(error, "response", None), "status_code", 0)  # of requests
    if 400 <= status < 500 or getattr(error, "errno", None) == errno.ENOSPC:
        return status not in PASSING
    # No such file, no access, a missing package, an unknown protocol
    return isinstance(error, (FileNotFoundError, PermissionError, ImportError, ValueError))


def _file_system(address: str) -> Any:
    """The file system of fsspec for an address."""
    import fsspec

    options = {}
    if address.startswith("http"):
        from aiohttp import ClientTimeout  # an ImportError names the missing package

        # The default limits a whole download to five minutes.
        timeout = ClientTimeout(total=None, sock_connect=TIMEOUT, sock_read=TIMEOUT)
        options = {"client_kwargs": {"timeout": timeout}}
    return fsspec.core.url_to_fs(address, **options)[0]


def _message(error: Exception) -> str:
    if isinstance(error, ImportError):
        return f"{error}; pip install 'frame-flexible[store]'"
    return f"{type(error).__name__}: {error}"
