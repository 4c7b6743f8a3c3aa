"""A local web server with faults, for tests of downloads."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


def safetensors_bytes(size: int, *, step: int = 1) -> bytes:
    """A valid .safetensors file of `size` bytes with one tensor, 0, step, 2 step, … modulo 256."""
    count = size - 128
    entry = {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}
    header = json.dumps({"x": entry}).encode().ljust(120)
    cycle = bytes(step * k % 256 for k in range(256))
    return len(header).to_bytes(8, "little") + header + (cycle * (count // 256 + 1))[:count]


CONTENT = safetensors_bytes(2**20)
NEW = safetensors_bytes(2**20, step=3)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves its content under any name; `ranges` lists the Range headers that came."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.paths = []
        self.ranges = []
        self.url = f"http://127.0.0.1:{self.server_port}/tiny.safetensors"
        self.heal()

    def heal(self):
        """Serve the right file without faults."""
        self.break_after = []  # bytes after which the next answers break off
        self.honours_range = True
        self.delay = 0.0  # seconds before an answer
        self.stall = None  # (bytes, seconds) between the pieces of an answer
        self.content = CONTENT
        self.status = 200
        self.location = None  # address of redirects
        self.tag = None  # of the content
        self.changed = None  # the content and tag after the first answer
        self.ignores_if_range = False
        self.wrong_range = None  # Content-Range of partial answers
        self.lies = 0  # added to the first byte in Content-Range
        self.has_length = True
        self.chunked = False  # HTTP/1.1 chunks, in place of a length
        self.headers = {}  # of answers with the file
        self.answers = []  # statuses of the next answers, before the file


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server, wanted = self.server, self.headers["Range"]
        server.ranges.append(wanted)
        server.paths.append(self.path)
        time.sleep(server.delay)
        status = server.answers.pop(0) if server.answers else server.status
        if status != 200:
            self.send_response(status)
            if server.location:
                self.send_header("Location", server.location)
            self.send_header("Retry-After", "0")
            self.end_headers()
            return
        size, start = len(server.content), self.start(wanted)
        if start >= size > 0:
            self.send_error(416)
            return
        self.protocol_version = "HTTP/1.1" if server.chunked else "HTTP/1.0"
        self.send_response(206 if start else 200)
        if server.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif server.has_length:
            self.send_header("Content-Length", str(size - start))
        if start:
            given = server.wrong_range or f"bytes {start + server.lies}-{size - 1}/{size}"
            self.send_header("Content-Range", given)
        if server.tag:
            self.send_header("ETag", server.tag)
        for name, value in server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.send_body(server.content[start:])
        if server.changed:
            server.content, server.tag = server.changed

    def start(self, wanted):
        """The first byte to send."""
        server = self.server
        if not wanted or not server.honours_range:
            return 0
        same = self.headers["If-Range"] in (None, server.tag)
        if not same and not server.ignores_if_range:
            return 0
        return int(wanted.removeprefix("bytes=").rstrip("-"))

    def send_body(self, body):
        cut = self.server.break_after.pop(0) if self.server.break_after else None
        piece, pause = self.server.stall or (len(body) or 1, 0.0)
        try:
            for first in range(0, len(body[:cut]), piece):
                time.sleep(pause if first else 0.0)
                part = body[first : first + piece][: None if cut is None else cut - first]
                if self.server.chunked:
                    part = b"%x\r\n%b\r\n" % (len(part), part)
                self.wfile.write(part)
            if self.server.chunked and cut is None:
                self.wfile.write(b"0\r\n\r\n")
        except OSError:  # the client has left
            pass
        self.close_connection = True

    def log_message(self, *args):
        pass


@contextmanager
def serving(server: http.server.HTTPServer) -> Iterator[http.server.HTTPServer]:
    """Run a server in a thread."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
