"""Downloads from a local server that interrupts transfers, changes its file, or is down."""

from __future__ import annotations

import functools
import hashlib
import http.server
import multiprocessing
import os
import pty
import re
import sys
import threading
import time
from contextlib import suppress

import huggingface_hub
import numpy as np
import parity
import pytest
import requests
import torch
import yaml

from ffn.core import convert
from ffn.data import Preprocessing
from ffn.zoo import (
    WeightsError,
    create,
    create_model,
    download,
    home,
    load,
    load_start_weights,
    records,
    save_weights,
)

WEB = sys.modules["ffn.zoo.web"]
DOWNLOAD = sys.modules["ffn.zoo.download"]
CONTENT = bytes(range(256)) * 4096  # 1 MiB
SHA256 = hashlib.sha256(CONTENT).hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves its content under any name; `ranges` lists the Range headers that came."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges = []
        self.break_after = []  # bytes after which the next answers break off
        self.honours_range = True
        self.delay = 0.0  # seconds before an answer
        self.content = CONTENT
        self.status = 200
        self.tag = None  # of the content
        self.changed = None  # the content and tag after the first answer
        self.ignores_if_range = False
        self.lies = 0  # added to the first byte in Content-Range
        self.has_length = True
        self.answers = []  # statuses of the next answers, before the file
        self.url = f"http://127.0.0.1:{self.server_port}/tiny.safetensors"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        wanted = self.headers["Range"]
        self.server.ranges.append(wanted)
        time.sleep(self.server.delay)
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        if self.server.answers:
            self.send_response(self.server.answers.pop(0))
            self.send_header("Retry-After", "0")
            self.end_headers()
            return
        start = 0
        if wanted and self.server.honours_range:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            same = self.headers["If-Range"] in (None, self.server.tag)
            if not same and not self.server.ignores_if_range:
                start = 0
            if start >= len(self.server.content):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        size = len(self.server.content)
        if self.server.has_length:
            self.send_header("Content-Length", str(size - start))
        if start:
            first = start + self.server.lies
            self.send_header("Content-Range", f"bytes {first}-{size - 1}/{size}")
        if self.server.tag:
            self.send_header("ETag", self.server.tag)
        self.end_headers()
        body = self.server.content[start:]
        if self.server.break_after:
            body = body[: self.server.break_after.pop(0)]
        self.wfile.write(body)
        if self.server.changed:
            self.server.content, self.server.tag = self.server.changed

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FFN_HOME", str(tmp_path))
    monkeypatch.setattr(WEB, "PAUSE", 0.0)


def test_home_is_the_environments_or_the_cache(monkeypatch, tmp_path):
    assert home() == tmp_path
    monkeypatch.delenv("FFN_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert home() == tmp_path / "me" / ".cache" / "ffn"


def test_a_file_is_fetched_once_and_never_touched_again(server, tmp_path):
    path = download(server.url, sha256=SHA256)
    assert path.read_bytes() == CONTENT
    assert path.parent == tmp_path / "weights"
    before = path.stat()

    server.shutdown()
    server.server_close()

    assert download(server.url, sha256=SHA256) == path
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert server.ranges == [None]
    assert not list(path.parent.glob("*.part"))


def test_a_cached_file_needs_no_right_to_write(server):
    path = download(server.url, sha256=SHA256)
    path.with_name(f"{path.name}.lock").unlink()
    assert download(server.url, sha256=SHA256) == path
    assert os.listdir(path.parent) == [path.name]


def test_a_broken_transfer_goes_on_where_it_stopped(server):
    server.break_after = [300_000, 200_000]
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-", "bytes=500000-"]


def test_a_later_call_goes_on_where_an_earlier_one_gave_up(server, monkeypatch):
    monkeypatch.setattr(WEB, "ATTEMPTS", 1)
    server.break_after = [400_000]
    with pytest.raises(WeightsError, match="interrupted after 400,000 of 1,048,576 bytes") as error:
        download(server.url, sha256=SHA256)
    assert "400,000 bytes are kept in" in str(error.value)

    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=400000-"]


def test_a_server_without_ranges_starts_over(server):
    server.honours_range = False
    server.break_after = [300_000]
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-"]


NEW = CONTENT[::-1]


@pytest.mark.parametrize("cut", range(1, len(CONTENT), len(CONTENT) // 20))
def test_two_versions_of_a_file_are_never_joined(server, cut):
    """The file changes while the first transfer breaks off; nobody knows its hash."""
    server.tag, server.changed = '"1"', (NEW, '"2"')
    server.break_after = [cut]
    assert download(server.url, sha256=None).read_bytes() == NEW
    assert server.ranges == [None, f"bytes={cut}-"]


@pytest.mark.parametrize("tag", ['"2"', 'W/"1"', None])
def test_a_server_that_ignores_if_range(server, tag):
    server.tag, server.changed, server.ignores_if_range = '"1"', (NEW, tag), True
    server.break_after = [300_000]
    assert download(server.url, sha256=None).read_bytes() == NEW
    assert server.ranges == [None, "bytes=300000-", None]


@pytest.mark.parametrize("tag", [None, 'W/"1"'])
def test_without_a_version_and_a_hash_a_download_starts_over(server, tag):
    server.tag, server.changed = tag, (NEW, tag)
    server.break_after = [300_000]
    assert download(server.url, sha256=None).read_bytes() == NEW
    assert server.ranges == [None, None]


def test_the_same_version_goes_on_in_a_later_call(server, monkeypatch, tmp_path):
    monkeypatch.setattr(WEB, "ATTEMPTS", 1)
    server.tag, server.break_after = '"1"', [400_000]
    with pytest.raises(WeightsError, match="interrupted"):
        download(server.url, sha256=None)
    assert download(server.url, sha256=None).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=400000-"]
    assert not list((tmp_path / "weights").glob("*.version"))


def test_bytes_from_another_place_are_refused(server):
    server.lies, server.break_after = -1, [400_000]
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=400000-", None]


def test_a_part_that_is_longer_than_the_file_starts_over(server, tmp_path):
    part = tmp_path / "weights" / f"{SHA256[:16]}-tiny.safetensors.part"
    part.parent.mkdir()
    part.write_bytes(CONTENT + b"more")
    with pytest.raises(WeightsError, match="has sha256"):  # the server does not tell its size
        download(server.url, sha256=SHA256)
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT


@pytest.mark.parametrize("has_length", [True, False])
def test_a_file_of_another_size_is_refused(server, tmp_path, has_length):
    server.has_length = has_length
    with pytest.raises(WeightsError, match=r"1,000 bytes as the record states"):
        download(server.url, sha256=None, size=1000)
    kept = sum(path.stat().st_size for path in (tmp_path / "weights").glob("*.part"))
    assert kept <= WEB.CHUNK


def test_a_short_answer_without_a_length_is_no_complete_file_of_known_size(server):
    """The end of a connection without Content-Length looks like the end of the file."""
    server.has_length, server.tag, server.break_after = False, '"1"', [400_000]
    path = download(server.url, sha256=None, size=len(CONTENT))
    assert path.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=400000-"]


def test_a_file_that_is_shorter_than_its_known_size_is_refused(server):
    server.has_length, server.tag = False, '"1"'
    message = r"has 1,048,576 bytes, expected 1,048,577 bytes as the record states"
    with pytest.raises(WeightsError, match=message):
        download(server.url, sha256=None, size=len(CONTENT) + 1)
    assert len(server.ranges) == 2


def test_a_file_that_is_too_long_is_refused_by_every_call(server):
    server.has_length, server.tag = False, '"1"'
    for _ in range(2):  # the first keeps a part
        with pytest.raises(WeightsError, match=r"expected 1,000 bytes as the record states"):
            download(server.url, sha256=None, size=1000)


def test_answers_that_ask_to_come_back_later(server):
    server.answers = [429, 408, 503]
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT


def test_the_number_of_requests_is_bounded(server, monkeypatch):
    monkeypatch.setattr(WEB, "REQUESTS", 4)
    server.break_after = [10_000] * 10
    with pytest.raises(WeightsError, match="40,000 bytes are kept"):
        download(server.url, sha256=SHA256)
    assert len(server.ranges) == 4


def test_a_complete_part_is_used(server, tmp_path):
    """A process was killed between the last byte and the check."""
    part = tmp_path / "weights" / f"{SHA256[:16]}-tiny.safetensors.part"
    part.parent.mkdir()
    part.write_bytes(CONTENT)
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT
    assert server.ranges == [f"bytes={len(CONTENT)}-"]


def test_another_hash_is_refused_and_the_file_put_aside(server, tmp_path):
    with pytest.raises(WeightsError, match=f"has sha256 {SHA256}, expected {OTHER}"):
        download(server.url, sha256=OTHER)
    kept = [p.name for p in (tmp_path / "weights").iterdir() if p.suffix != ".lock"]
    assert kept == [f"{OTHER[:16]}-tiny.safetensors.rejected"]

    with pytest.raises(WeightsError, match="expected"):  # and never taken for a cached one
        download(server.url, sha256=OTHER)
    assert server.ranges == [None, None]


def test_a_file_damaged_in_the_cache_is_fetched_again(server, caplog):
    path = download(server.url, sha256=SHA256)
    path.write_bytes(CONTENT[:-1] + b"x")
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT
    assert "does not have its SHA-256 any more" in caplog.text
    assert path.with_name(f"{path.name}.rejected").exists()


def test_no_server_no_file(server, tmp_path):
    server.shutdown()
    server.server_close()
    with pytest.raises(WeightsError, match=r"cannot download http://127.*refused"):
        download(server.url, sha256=SHA256)
    assert not list((tmp_path / "weights").glob("*tiny.safetensors"))


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (503, 5)])
def test_only_a_servers_own_faults_are_tried_again(server, status, requests):
    server.status = status
    with pytest.raises(WeightsError, match=f"{status}"):
        download(server.url, sha256=SHA256)
    assert len(server.ranges) == requests


def test_a_home_that_cannot_be_written_names_the_variable(server, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FFN_HOME", str(tmp_path / "file/x"))
    with pytest.raises(WeightsError, match=r"file/x/weights: Not a directory.* FFN_HOME"):
        download(server.url, sha256=SHA256)
    monkeypatch.setenv("FFN_HOME", str(tmp_path))
    (tmp_path / "weights" / f"{SHA256[:16]}-tiny.safetensors.lock").mkdir(parents=True)
    with pytest.raises(WeightsError, match=r"/weights: Is a directory.* FFN_HOME"):
        download(server.url, sha256=SHA256)


def test_only_the_web_is_read():
    with pytest.raises(WeightsError, match="expected an http, https or hf address"):
        download("file:///etc/hostname", sha256=SHA256)


def test_two_processes_fetch_once(server):
    server.delay = 0.3
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        paths = pool.starmap(_download, [(server.url,), (server.url,)], chunksize=1)
    assert paths[0] == paths[1]
    assert server.ranges == [None]


def _download(url):
    return download(url, sha256=SHA256)


def test_without_a_terminal_a_download_prints_one_line(server, capfd):
    path = download(server.url, sha256=SHA256)
    assert capfd.readouterr() == ("", f"downloading {server.url} to {path}\n")
    download(server.url, sha256=SHA256)
    assert capfd.readouterr() == ("", "")


def test_on_a_terminal_a_download_shows_a_progress_bar(server, monkeypatch):
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        server.break_after = [300_000]
        download(server.url, sha256=SHA256)
        monkeypatch.undo()
    shown = b""
    with suppress(OSError):  # Linux raises one at the end of a closed terminal
        while chunk := os.read(ours, 65536):
            shown += chunk
    os.close(ours)
    assert b"tiny.safetensors" in shown
    assert b"1.0/1.0 MB" in shown


# Files of hosts that a library fetches.


class HubHandler(http.server.BaseHTTPRequestHandler):
    """The part of the Hugging Face Hub that a download of one file needs."""

    def do_HEAD(self):
        self.server.paths.append(self.path)
        if not re.fullmatch(r"/me/nets/resolve/(main|v1)/deep/tiny\.safetensors", self.path):
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("X-Repo-Commit", "1" * 40)
        self.send_header("ETag", f'"{SHA256}"')
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()

    def do_GET(self):
        self.do_HEAD()
        self.wfile.write(CONTENT)

    def log_message(self, *args):
        pass


class DriveHandler(http.server.BaseHTTPRequestHandler):
    """Google Drive: a large file needs a confirmation page."""

    def do_GET(self):
        self.server.paths.append(self.path)
        self.server.ranges.append(self.headers["Range"])
        if self.path.startswith("/uc?id=large"):
            page = (
                f'<html><form id="download-form" action="{self.server.url}/download" method="get">'
                '<input type="hidden" name="id" value="large">'
                '<input type="hidden" name="confirm" value="t">'
                '<input type="hidden" name="uuid" value="u-1"></form></html>'
            ).encode()
            self.answer(page, "text/html")
        elif self.path == "/download?id=large&confirm=t&uuid=u-1":
            self.answer(self.server.content, "application/octet-stream")
        else:
            page = b'<html><p class="uc-error-subcaption">Too many users have viewed it.</p></html>'
            self.answer(page, "text/html")

    def answer(self, content, kind):
        start = int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").rstrip("-"))
        if self.headers["If-Range"] not in (None, self.server.tag):
            start = 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Type", kind)
        self.send_header("ETag", self.server.tag)
        if self.server.has_length:
            self.send_header("Content-Length", str(len(content) - start))
        self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if kind != "text/html":
            self.send_header("Content-Disposition", 'attachment; filename="any.pth"')
        self.end_headers()
        limit = None if start or kind == "text/html" else self.server.break_after
        self.wfile.write(content[start:][:limit])

    def log_message(self, *args):
        pass


@pytest.fixture
def host(request):
    """A server with the handler that a test names."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), request.param) as server:
        server.paths, server.ranges = [], []
        server.content, server.tag, server.has_length = CONTENT, '"1"', True
        server.break_after = None
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def hub(host, monkeypatch):
    """Requests for the Hugging Face Hub reach the local server."""
    local = functools.partial(huggingface_hub.hf_hub_download, endpoint=host.url)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", local)
    return host


@pytest.mark.parametrize("host", [HubHandler], indirect=True)
@pytest.mark.parametrize(
    ("url", "revision"),
    [
        ("hf://me/nets/deep/tiny.safetensors", "main"),
        ("hf://me/nets@v1/deep/tiny.safetensors", "v1"),
        ("https://huggingface.co/me/nets/resolve/v1/deep/tiny.safetensors?download=true", "v1"),
        ("https://huggingface.co/me/nets/blob/main/deep/tiny.safetensors", "main"),
    ],
)
def test_a_file_on_the_hub(hub, url, revision, tmp_path):
    path = download(url, sha256=SHA256)

    assert path.read_bytes() == CONTENT
    assert path == tmp_path / "weights" / f"{SHA256[:16]}-tiny.safetensors"
    assert f"/me/nets/resolve/{revision}/deep/tiny.safetensors" in hub.paths
    hub.paths.clear()
    assert download(url, sha256=SHA256) == path  # no network access
    assert hub.paths == []
    kept = sorted(p.name for p in path.parent.iterdir())
    assert kept == [path.name, f"{path.name}.lock"]


@pytest.mark.parametrize("host", [HubHandler], indirect=True)
def test_a_file_that_the_hub_does_not_have(hub):
    with pytest.raises(WeightsError, match=r"cannot download hf://me/nets/other\.pt: .*404"):
        download("hf://me/nets/other.pt", sha256=SHA256)
    with pytest.raises(WeightsError, match=f"has sha256 {SHA256}"):
        download("hf://me/nets/deep/tiny.safetensors", sha256=OTHER)


@pytest.fixture
def drive(host, monkeypatch):
    """Requests for drive.google.com reach the local server."""
    original = requests.Session.get

    def get(session, url, **kwargs):
        return original(session, url.replace("https://drive.google.com", host.url), **kwargs)

    monkeypatch.setattr(requests.Session, "get", get)
    return host


LARGE = (
    "https://drive.google.com/file/d/large/view?usp=sharing",
    "https://drive.google.com/uc?id=large",
    "https://drive.usercontent.google.com/download?id=large&export=download&confirm=t",
)


@pytest.mark.parametrize("host", [DriveHandler], indirect=True)
@pytest.mark.parametrize("url", LARGE)
def test_a_large_file_on_google_drive(drive, url):
    drive.break_after = 700_000
    assert download(url, sha256=SHA256, name="x.pth").read_bytes() == CONTENT
    assert drive.paths[0] == "/uc?id=large"
    assert drive.paths[1:] == ["/download?id=large&confirm=t&uuid=u-1"] * 2  # resumed once


@pytest.mark.parametrize("host", [DriveHandler], indirect=True)
@pytest.mark.parametrize("sha256", [None, SHA256])
def test_a_later_call_joins_no_two_versions_of_a_file_on_google_drive(drive, monkeypatch, sha256):
    monkeypatch.setattr(DOWNLOAD, "ATTEMPTS", 1)  # the first process ends at the first error
    drive.content, drive.tag, drive.break_after = b"o" * len(CONTENT), '"0"', 700_000
    with pytest.raises(WeightsError, match="incomplete"):
        download(LARGE[0], sha256=sha256, name="x.pth")

    drive.content, drive.tag, drive.break_after = CONTENT, '"1"', None
    if sha256:  # resumed, and refused by the hash
        with pytest.raises(WeightsError, match="has sha256"):
            download(LARGE[0], sha256=sha256, name="x.pth")
    assert download(LARGE[0], sha256=sha256, name="x.pth").read_bytes() == CONTENT
    assert not list((home() / "weights").glob("*.part"))


@pytest.mark.parametrize("host", [DriveHandler], indirect=True)
def test_a_later_call_resumes_a_file_of_known_hash_on_google_drive(drive, monkeypatch):
    monkeypatch.setattr(DOWNLOAD, "ATTEMPTS", 1)
    drive.break_after = 700_000
    with pytest.raises(WeightsError, match="incomplete"):
        download(LARGE[0], sha256=SHA256, name="x.pth")
    assert download(LARGE[0], sha256=SHA256, name="x.pth").read_bytes() == CONTENT
    assert drive.ranges[-1] == "bytes=524288-"  # the whole chunks of gdown


@pytest.mark.parametrize("host", [DriveHandler], indirect=True)
@pytest.mark.parametrize("has_length", [True, False])
@pytest.mark.parametrize("size", [1000, len(CONTENT) + 1])
def test_a_file_of_another_size_on_google_drive_is_refused(drive, has_length, size):
    drive.has_length = has_length
    with pytest.raises(WeightsError, match=f"expected {size:,} bytes as the record states"):
        download(LARGE[0], sha256=None, name="x.pth", size=size)
    assert not list((home() / "weights").glob("*.pth"))


@pytest.mark.parametrize("host", [DriveHandler], indirect=True)
def test_a_file_that_google_drive_does_not_give(drive):
    with pytest.raises(WeightsError, match="Too many users have viewed it"):
        download("https://drive.google.com/uc?id=busy", sha256=None)
    assert drive.paths == ["/uc?id=busy"]


def test_a_zoo_name_with_a_url_is_fetched_and_loaded(server, tmp_path, monkeypatch, network, meta):
    path = tmp_path / "zoo" / "tsm_tiny.web.safetensors"
    save_weights(network, path, meta)
    server.content = path.read_bytes()
    path.unlink()
    record = path.with_suffix(".yaml")
    record.write_text(record.read_text().replace(f"file: {path.name}", f"url: {server.url}"))
    monkeypatch.setattr(records, "zoo_folder", lambda: path.parent)

    model = load("tsm_tiny.web")

    state = network.state_dict()
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    load("tsm_tiny.web")
    assert server.ranges == [None]


def test_a_hash_that_nobody_knows_is_remembered(server, caplog):
    first = download(server.url, sha256=None, name="x.pth")
    assert first.read_bytes() == CONTENT
    assert f"the expected sha256 is unknown; {SHA256} is stored" in caplog.text
    assert download(server.url, sha256=None, name="x.pth") == first
    assert server.ranges == [None]

    first.unlink()
    server.content = CONTENT[::-1]
    with pytest.raises(WeightsError, match=f"expected {SHA256}"):
        download(server.url, sha256=None, name="x.pth")


@pytest.fixture
def published(server, tmp_path, monkeypatch):
    """The record of a frame-flexible TSM that FFN-pytorch's code saved, and what it serves."""
    network = convert(create_model("tsm_r18", num_classes=5), (4, 8, 16))
    state = {f"module.{k}": v for k, v in parity.reference("tsm", network.state_dict()).items()}
    torch.save({"state_dict": state, "best_prec1": np.float64(50.79)}, tmp_path / "ckpt.pth.tar")
    server.content = (tmp_path / "ckpt.pth.tar").read_bytes()
    record = {
        "name": "tsm_r18.web_f4_8_16",
        "model": "tsm_r18",
        "num_classes": 5,
        "trained_frames": [4, 8, 16],
        "preprocessing": Preprocessing().to_dict(),
        "metrics": {16: {"top1": 50.79}},
        "origin": "reported",
        "url": f"{server.url}?id=1&export=download",
        "page": "https://example.org/page",
        "source_format": "ffn-pytorch",
    }
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo/tsm_r18.web_f4_8_16.yaml").write_text(yaml.safe_dump(record))
    monkeypatch.setattr(records, "zoo_folder", lambda: tmp_path / "zoo")
    return state


def test_published_weights_of_others_are_fetched_and_converted(server, published):
    model = load("tsm_r18.web_f4_8_16")

    ours = model.state_dict()
    theirs = published["module.base_model.layer2.0.bn1_8.weight"]
    assert torch.equal(ours["net.layer2.0.bn1.8.weight"], theirs)
    load("tsm_r18.web_f4_8_16")
    assert server.ranges == [None]


def test_published_weights_start_a_plain_or_flexible_network_of_other_classes(published):
    model = convert(create_model("tsm_r18", num_classes=9), (4, 8, 16))
    match, _ = load_start_weights(model, "tsm_r18.web_f4_8_16")
    assert match.classes == (5, 9)
    assert match.share == 1


def test_a_page_in_place_of_the_file_is_reported_and_forgotten(server, published, tmp_path):
    checkpoint, page = server.content, b"<!DOCTYPE html><html>Virus scan warning</html>"
    server.content = page
    with pytest.raises(WeightsError, match=r"a web page.* manually from https://example\.org/page"):
        load("tsm_r18.web_f4_8_16")
    (aside,) = (tmp_path / "weights").glob("*.rejected")
    assert aside.read_bytes() == page

    server.content = checkpoint  # the page's hash is not the one to expect
    assert load("tsm_r18.web_f4_8_16").trained_frames == (4, 8, 16)


def test_pretrained_starts_from_the_published_weights(server, published, monkeypatch):
    path = records.zoo_folder() / "tsm_r18.web_f4_8_16.yaml"
    monkeypatch.setitem(create.STARTS, "tsm_r18", "tsm_r18.web_f4_8_16")
    create_model("tsm_r18", num_classes=9, pretrained=True)  # the largest sub-network
    plain = parity.reference("tsm", create_model("tsm_r18", num_classes=5).state_dict())
    torch.save({"state_dict": plain}, path.with_suffix(".pth"))
    server.content = path.with_suffix(".pth").read_bytes()
    server_url = f"{server.url}?id=2"
    text = path.read_text().replace(f"{server.url}?id=1&export=download", server_url)
    path.write_text(text.replace("trained_frames:\n- 4\n- 8\n- 16\n", ""))

    model = create_model("tsm_r18", num_classes=9, pretrained=True)

    assert torch.equal(model.net.bn1.weight, plain["base_model.bn1.weight"])
    assert model.net.fc.out_features == 9
