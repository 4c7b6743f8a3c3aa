"""Downloads: cached, checked by their hash, and shown on a terminal."""

from __future__ import annotations

import multiprocessing
import os
import pty
import sys
from contextlib import suppress

import pytest
from web_server import CONTENT, NEW, OTHER, SHA256

from ffn.zoo import WeightsError, download, home

WEB = sys.modules["ffn.zoo.web"]

pytestmark = pytest.mark.usefixtures("cache")


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


def test_another_hash_is_refused_and_the_file_put_aside(server, tmp_path):
    with pytest.raises(WeightsError, match=f"has sha256 {SHA256}, expected {OTHER}"):
        download(server.url, sha256=OTHER)
    kept = [p.name for p in (tmp_path / "weights").iterdir() if p.suffix != ".lock"]
    assert kept == [f"{OTHER[:16]}-tiny.safetensors.rejected"]

    with pytest.raises(WeightsError, match="expected"):  # and never taken for a cached one
        download(server.url, sha256=OTHER)
    assert server.ranges == [None, None]


def test_a_hash_that_nobody_knows_is_remembered(server, caplog):
    first = download(server.url, sha256=None, name="x.safetensors")
    assert first.read_bytes() == CONTENT
    assert f"the expected sha256 is unknown; {SHA256} is stored" in caplog.text
    assert download(server.url, sha256=None, name="x.safetensors") == first
    assert server.ranges == [None]

    first.unlink()
    server.content = NEW
    with pytest.raises(WeightsError, match=f"expected {SHA256}"):
        download(server.url, sha256=None, name="x.safetensors")


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
