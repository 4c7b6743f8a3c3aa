"""Local stand-ins for a web server of weights and for the Hugging Face Hub."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import safetensors.torch
import torch

CONTENT = safetensors.torch.save({"x": torch.arange(2**16)})
SHA256 = hashlib.sha256(CONTENT).hexdigest()
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Server(http.server.ThreadingHTTPServer):
    """Serves `content` under any name; `paths` were asked.

    The next answers break off after `cuts` bytes, or have the statuses `answers`.
    """

    daemon_threads = True

    def __init__(self, handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.content, self.paths, self.cuts, self.answers = CONTENT, [], [], []
        self.commit = COMMIT
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.url = f"{self.address}/tiny.safetensors"

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


class WebHandler(http.server.BaseHTTPRequestHandler):
    """Answers of a web server."""

    def find(self) -> tuple[int, bytes, dict[str, str]]:
        """Status, content and headers of the answer."""
        return 200, self.server.content, {}

    def do_HEAD(self) -> bytes:
        self.server.paths.append(self.path)
        status, content, headers = self.find()
        if self.command == "GET" and self.server.answers:
            status = self.server.answers.pop(0)
        content = content if status == 200 else b""
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        return content

    def do_GET(self) -> None:
        content = self.do_HEAD()
        self.wfile.write(content[: self.server.cuts.pop(0) if self.server.cuts else None])

    def log_message(self, *_: object) -> None:
        pass


class HubHandler(WebHandler):
    """Answers of a Hub with one repository, me/net, of one `commit`: the files of `folder`."""

    def find(self) -> tuple[int, bytes, dict[str, str]]:
        path = self.path.partition("?")[0].removeprefix("/api/models").lstrip("/")
        owner, name, kind, revision, *file = path.split("/", 4)
        known = ("main", "v1", "refs%2Fpr%2F1", self.server.commit)
        if (owner, name) != ("me", "net") or revision not in known:
            return 404, b"", {"X-Error-Code": "RepoNotFound"}
        if kind == "resolve":
            content = (self.server.folder / file[0]).read_bytes()
            return (
                200,
                content,
                {"X-Repo-Commit": self.server.commit, "ETag": f'"{hash(content):x}"'},
            )
        paths = self.server.folder.iterdir()
        tree = [
            {"type": "file", "path": p.name, "size": p.stat().st_size, "oid": "0"} for p in paths
        ]
        siblings = [{"rfilename": each["path"]} for each in tree]
        about = {"id": "me/net", "sha": self.server.commit, "siblings": siblings, "private": False}
        return 200, json.dumps(tree if kind == "tree" else about).encode(), {}


@contextmanager
def serving(handler: type[WebHandler] = WebHandler, folder: Path | None = None) -> Iterator[Server]:
    """Run a server in a thread."""
    with Server(handler) as server:
        server.folder = folder
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()
