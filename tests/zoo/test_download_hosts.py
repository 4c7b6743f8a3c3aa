"""Files on the Hugging Face Hub and on Google Drive, which libraries fetch, from a local server."""

from __future__ import annotations

import functools
import http.server
import re
import sys

import huggingface_hub
import pytest
import requests
from web_server import CONTENT, OTHER, SHA256, serving

from ffn.zoo import WeightsError, download, home

DOWNLOAD = sys.modules["ffn.zoo.download"]

pytestmark = pytest.mark.usefixtures("cache")


class HubHandler(http.server.BaseHTTPRequestHandler):
    """The part of the Hugging Face Hub that a download of one file needs."""

    def do_HEAD(self):
        self.server.paths.append(self.path)
        if not re.fullmatch(
            r"/me/nets/resolve/(main|v1)/deep/([\da-f]{16}-)?tiny\.safetensors", self.path
        ):
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
    with serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), request.param)) as server:
        server.paths, server.ranges = [], []
        server.content, server.tag, server.has_length = CONTENT, '"1"', True
        server.break_after = None
        server.url = f"http://127.0.0.1:{server.server_port}"
        yield server


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


@pytest.mark.parametrize("host", [HubHandler], indirect=True)
def test_a_mirror_on_the_hub(hub, monkeypatch):
    monkeypatch.setenv("FFN_MIRRORS", "hf://me/nets/deep")
    path = download("http://127.0.0.1:9/tiny.safetensors", sha256=SHA256)
    assert path.read_bytes() == CONTENT
    assert set(hub.paths) == {f"/me/nets/resolve/main/deep/{SHA256[:16]}-tiny.safetensors"}


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
    assert download(url, sha256=SHA256, name="x.safetensors").read_bytes() == CONTENT
    assert drive.paths[0] == "/uc?id=large"
    assert drive.paths[1:] == ["/download?id=large&confirm=t&uuid=u-1"] * 2  # resumed once


@pytest.mark.parametrize("host", [DriveHandler], indirect=True)
@pytest.mark.parametrize("sha256", [None, SHA256])
def test_a_later_call_joins_no_two_versions_of_a_file_on_google_drive(drive, monkeypatch, sha256):
    monkeypatch.setattr(DOWNLOAD, "ATTEMPTS", 1)  # the first process ends at the first error
    drive.content, drive.tag, drive.break_after = b"o" * len(CONTENT), '"0"', 700_000
    with pytest.raises(WeightsError, match="incomplete"):
        download(LARGE[0], sha256=sha256, name="x.safetensors")

    drive.content, drive.tag, drive.break_after = CONTENT, '"1"', None
    if sha256:  # resumed, and refused by the hash
        with pytest.raises(WeightsError, match="has sha256"):
            download(LARGE[0], sha256=sha256, name="x.safetensors")
    assert download(LARGE[0], sha256=sha256, name="x.safetensors").read_bytes() == CONTENT
    assert not list((home() / "weights").glob("*.part"))


@pytest.mark.parametrize("host", [DriveHandler], indirect=True)
def test_a_later_call_resumes_a_file_of_known_hash_on_google_drive(drive, monkeypatch):
    monkeypatch.setattr(DOWNLOAD, "ATTEMPTS", 1)
    drive.break_after = 700_000
    with pytest.raises(WeightsError, match="incomplete"):
        download(LARGE[0], sha256=SHA256, name="x.safetensors")
    assert download(LARGE[0], sha256=SHA256, name="x.safetensors").read_bytes() == CONTENT
    assert drive.ranges[-1] == "bytes=524288-"  # the whole chunks of gdown


@pytest.mark.parametrize("host", [DriveHandler], indirect=True)
@pytest.mark.parametrize("has_length", [True, False])
@pytest.mark.parametrize("size", [1000, len(CONTENT) + 1])
def test_a_file_of_another_size_on_google_drive_is_refused(drive, has_length, size):
    drive.has_length = has_length
    with pytest.raises(WeightsError, match=f"expected {size:,} bytes as the record states"):
        download(LARGE[0], sha256=None, name="x.safetensors", size=size)
    assert not list((home() / "weights").glob("*.pth"))


@pytest.mark.parametrize("host", [DriveHandler], indirect=True)
@pytest.mark.parametrize("sha256", [None, SHA256])
def test_a_page_behind_the_confirmation_is_refused(drive, sha256):
    drive.content = b"<!DOCTYPE html><html>Sign in</html>"
    with pytest.raises(WeightsError, match="it is a web page"):
        download(LARGE[0], sha256=sha256, name="x.pth")
    kept = {path.suffix for path in (home() / "weights").iterdir()}
    assert kept == {".lock", ".rejected"}
    drive.content = CONTENT
    path = download(LARGE[0], sha256=sha256, name="x.safetensors")
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("host", [DriveHandler], indirect=True)
def test_a_file_that_google_drive_does_not_give(drive):
    with pytest.raises(WeightsError, match="Too many users have viewed it"):
        download("https://drive.google.com/uc?id=busy", sha256=None)
    assert drive.paths == ["/uc?id=busy"]


def test_without_gdown_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gdown", None)
    with pytest.raises(WeightsError, match=r"pip install 'frame-flexible\[drive\]'") as caught:
        download(LARGE[0], sha256=SHA256, name="x.safetensors")
    assert LARGE[0] in str(caught.value)
