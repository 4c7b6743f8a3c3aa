"""Reach the files of a remote store: whole files as streams, or parts of a file by ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from ffn.data.store.layout import RangesIgnoredError, StoreError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from fsspec import AbstractFileSystem

ATTEMPTS = 3  # per file or range
PAUSE = 1.0  # seconds after the first failed attempt; n times as long after the n-th
TIMEOUT = 60  # seconds without data, of http

# All file systems that hold connections, and the event loops of those of http. A forked process
# keeps those of its parent: closing one would take the connections of the parent out of an epoll
# that both processes share, and requests of the parent would wait for the timeout.
_systems: list[tuple[AbstractEventLoop | None, AbstractFileSystem]] = []


@contextmanager
def opened(address: str) -> Iterator[BinaryIO]:
    """Open a remote file for sequential reading.

    Raises:
        StoreError: if the library for this kind of address is missing.
        OSError: if the file cannot be read.
    """
    system, path = _file_system(address)
    # A block size of 0 reads sequentially; other sizes need a server with range requests. With a
    # size, which a stream does not use, fsspec asks for no other first.
    streamed = {"block_size": 0, "size": 1} if _is_http(address) else {}
    try:
        with system.open(path, "rb", **streamed) as source:
            yield source
    except OSError:
        raise
    except Exception as error:
        raise as_os_error(error) from error


def fetch_ranges(
    address: str, ranges: Sequence[tuple[int, int]], size: int
) -> list[bytes | OSError]:
    """Read parts of a remote file, each by one request, concurrently where fsspec can.

    Args:
        address: The file.
        ranges: Start and end of each part.
        size: Length of the file in bytes.

    Returns:
        For each range its bytes, or the error: `FileNotFoundError`, `RangesIgnoredError`,
        `WrongLengthError`, or another `OSError`, also for an answer that is too short.

    Raises:
        StoreError: if the library for this kind of address is missing.
    """
    system, path = _file_system(address)
    more = {"size": size} if _is_http(address) else {}
    starts, ends = ([pair[side] for pair in ranges] for side in (0, 1))
    try:
        answers = system.cat_ranges([path] * len(ranges), starts, ends, on_error="return", **more)
    except Exception as error:
        answers = [error] * len(ranges)
    pairs = zip(answers, ranges, strict=True)
    return [_checked(answer, end - start, size) for answer, (start, end) in pairs]


def as_os_error(error: Exception) -> OSError:
    """The error of a file system; aiohttp, botocore, … raise their own kinds."""
    if isinstance(error, OSError):
        return error
    return OSError(f"{type(error).__name__}: {error}")


def why(error: OSError) -> str:
    """The message of an error, or its kind if it has none."""
    return str(error) or type(error).__name__


def _checked(answer: bytes | Exception, length: int, size: int) -> bytes | OSError:
    if isinstance(answer, BaseException):
        return as_os_error(answer)
    if len(answer) == length:
        return answer
    if len(answer) == size:
        return RangesIgnoredError(f"{size:,} bytes came, the whole file; {length:,} were requested")
    return OSError(f"{len(answer):,} of {length:,} bytes came")


def _is_http(address: str) -> bool:
    return address.startswith(("http://", "https://"))


def _file_system(address: str) -> tuple[AbstractFileSystem, str]:
    """The file system of an address in this process, and the path in it."""
    import fsspec

    _forget_event_loop_of_parent()
    try:
        if _is_http(address):
            return _http_system(), address
        system, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise StoreError(
            f"{address} cannot be opened: {error}. For http, pip install 'frame-flexible[store]'; "
            "for other addresses, install the package that fsspec names"
        ) from None
    if system.async_impl and all(kept is not system for _, kept in _systems):
        _systems.append((None, system))
    return system, path


def _http_system() -> AbstractFileSystem:
    from aiohttp import ClientTimeout
    from fsspec.asyn import get_loop

    from ffn.data.store.http_ranges import RangeFileSystem

    current = get_loop()
    for loop, system in _systems:
        if loop is current:
            return system
    timeout = ClientTimeout(total=None, sock_connect=TIMEOUT, sock_read=TIMEOUT)
    system = RangeFileSystem(client_kwargs={"timeout": timeout}, skip_instance_cache=True)
    _systems.append((current, system))
    return system


def _forget_event_loop_of_parent() -> None:
    """Have fsspec start an event loop in a forked process, which old versions do not do alone."""
    import fsspec.asyn

    thread = fsspec.asyn.iothread[0]
    if thread is not None and not thread.is_alive():
        fsspec.asyn.reset_lock()
