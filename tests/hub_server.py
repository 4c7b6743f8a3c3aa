"""A local stand-in for the Hugging Face Hub with one repository, and faults."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import ffn
from ffn.data import Preprocessing
from ffn.zoo import create_model, save_weights

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer(http.server.ThreadingHTTPServer):
    """Serves the files of a folder as the repository me/net of one commit; `paths` were asked.

    Faults are of answers with a file whose name ends in `suffix`.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.paths = folder, []
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.heal()

    def heal(self) -> None:
        """Serve the right files."""
        self.suffix = ".safetensors"
        self.cuts = []  # bytes after which the next answers break off, of all files
        self.damages = 0  # answers whose last byte is another one
        self.answers = []  # statuses of the next answers
        self.page = None  # in place of the file, without the headers of the Hub
        self.change = lambda content: content  # the file that is sent
        self.location = None  # of a redirect


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers for a `HubServer`."""

    def do_HEAD(self) -> bytes | None:
        self.server.paths.append(self.path)
        owner, name, _, revision, file = self.path.lstrip("/").split("/", 4)
        path = self.server.folder / file
        if (owner, name) != ("me", "net") or revision not in ("main", "v1", COMMIT):
            return self.refuse(404, "RepoNotFound")
        if not path.is_file():
            return self.refuse(404, "EntryNotFound")
        content = path.read_bytes()
        is_faulty, is_get = self.path.endswith(self.server.suffix), self.command == "GET"
        if is_faulty and self.server.page is not None:
            return self.send(self.server.page)
        if is_faulty and is_get:
            status = self.server.answers.pop(0) if self.server.answers else 200
            if status != 200:
                return self.refuse(status)
            if self.server.location:
                self.send_response(302)
                self.send_header("Location", self.server.location)
                self.send_header("Content-Length", "0")
                return self.end_headers()
        tag = f'"{hash(content):x}"'
        if is_faulty and is_get:
            content = self.server.change(content)
        return self.send(content, **{"X-Repo-Commit": COMMIT, "ETag": tag})

    def send(self, content: bytes, **headers: str) -> bytes:
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        return content

    def refuse(self, status: int, code: str = "") -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        content = self.do_HEAD()
        if content is None:
            return
        cut = self.server.cuts.pop(0) if self.server.cuts else None
        if self.path.endswith(self.server.suffix) and self.server.damages:
            self.server.damages -= 1
            content = content[:-1] + bytes([content[-1] ^ 1])
        self.wfile.write(content[:cut])

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving_hub(folder: Path) -> Iterator[HubServer]:
    """A server of a folder, with a network in it."""
    with HubServer(folder) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        save(folder / "model.safetensors")
        yield server
        server.shutdown()


def save(path: Path, **more: object) -> torch.nn.Module:
    """A network of two sub-networks, with its record."""
    torch.manual_seed(0)
    model = ffn.convert(create_model("tsm_tiny", num_classes=3), (2, 4)).eval()
    meta = {
        "model": "tsm_tiny",
        "num_classes": 3,
        "classes": ["up", "down", "still"],
        "trained_frames": [2, 4],
        "preprocessing": Preprocessing(crop=32, resize=36).to_dict(),
        "metrics": {2: {"top1": 40.0}, 4: {"top1": 61.25, "top5": 99.0}},
        "origin": "measured",
        "licence": "Apache-2.0",
        "source": "Trained on clips of a garden.",
    }
    save_weights(model, path, meta | more)
    return model
