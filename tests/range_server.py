"""A local web server with range requests, a delay and a limited bandwidth; it counts requests."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO
from urllib.parse import unquote

_BLOCK = 1 << 16  # bytes
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class RangeServer(ThreadingHTTPServer):
    """Serve the files of a folder, with the speed of a distant server.

    Args:
        folder: The files; no sub-folders.
        latency: Seconds before each answer.
        bandwidth: Bytes per second of all answers together; None: unlimited.
        handler: Class of the answers.

    Attributes:
        requests: Method, file name and byte range (first, last) of each request; None: the whole
            file.
        sent: Bytes of all bodies.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        folder: Path,
        *,
        latency: float = 0.0,
        bandwidth: float | None = None,
        handler: type[RangeHandler] | None = None,
    ) -> None:
        super().__init__(("127.0.0.1", 0), handler or RangeHandler)
        self.folder, self.latency, self.bandwidth = folder, latency, bandwidth
        self.requests: list[tuple[str, str, tuple[int, int] | None]] = []
        self.sent = 0
        self._lock, self._free_at = threading.Lock(), 0.0

    @property
    def address(self) -> str:
        """The URL of the folder."""
        return f"http://127.0.0.1:{self.server_port}"

    @contextmanager
    def running(self) -> Iterator[RangeServer]:
        """Answer requests in other threads until the block ends."""
        with self:
            threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
            try:
                yield self
            finally:
                self.shutdown()

    def forget(self) -> None:
        """Count from zero again."""
        self.requests, self.sent = [], 0

    def pass_on(self, size: int) -> None:
        """Count bytes, and wait until the common line has transferred them."""
        with self._lock:
            self.sent += size
            if self.bandwidth is None:
                return
            self._free_at = max(self._free_at, time.perf_counter()) + size / self.bandwidth
            free_at = self._free_at
        time.sleep(max(0.0, free_at - time.perf_counter()))


class RangeHandler(BaseHTTPRequestHandler):
    """Answer with a file, or with the part of it that `Range` names."""

    protocol_version = "HTTP/1.1"  # keeps connections
    server: RangeServer

    def do_GET(self) -> None:
        """Answer a request."""
        name, part = unquote(self.path).lstrip("/"), self._part()
        self.server.requests.append((self.command, name, part))
        time.sleep(self.server.latency)
        path = self.server.folder / name
        if "/" in name or not path.is_file():
            self.send_error(404)
            return
        with path.open("rb") as file:
            self.answer(file, os.fstat(file.fileno()).st_size, part)

    def do_HEAD(self) -> None:
        """Answer with the headers alone."""
        self.do_GET()

    def answer(self, file: BinaryIO, size: int, part: tuple[int, int] | None) -> None:
        """Send a file of `size` bytes, or its bytes first to last."""
        if part is None:
            self.send_body(200, file, 0, size)
        elif part[0] >= size:
            self.send_body(416, file, 0, 0, {"Content-Range": f"bytes */{size}"})
        else:
            first, last = part[0], min(part[1], size - 1)
            place = {"Content-Range": f"bytes {first}-{last}/{size}"}
            self.send_body(206, file, first, last + 1 - first, place)

    def send_body(
        self,
        status: int,
        file: BinaryIO,
        first: int,
        size: int,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Send a status line, headers, and `size` bytes of a file."""
        self.send_response(status)
        for name, value in {"Content-Length": str(size), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        file.seek(first)
        try:
            while size:
                block = file.read(min(size, _BLOCK))
                self.server.pass_on(len(block))
                self.wfile.write(block)
                size -= len(block)
        except OSError:  # the client has closed the connection
            self.close_connection = True

    def handle(self) -> None:
        """Answer the requests of a connection."""
        with suppress(ConnectionError):  # the client has closed it
            super().handle()

    def log_message(self, *given: object) -> None:
        """Write nothing."""

    def _part(self) -> tuple[int, int] | None:
        found = _RANGE.fullmatch(self.headers.get("Range", ""))
        return found and (int(found[1]), int(found[2]))
