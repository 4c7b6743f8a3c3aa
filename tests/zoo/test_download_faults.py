"""Downloads from a faulty server: nothing wrong gets the final name, and the next attempt works."""

from __future__ import annotations

import copy
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from web_server import CONTENT, NEW, OTHER, SHA256, Server

from ffn.zoo import WeightsError, download
from ffn.zoo.download import cache_path

DOWNLOAD = sys.modules["ffn.zoo.download"]
WEB = sys.modules["ffn.zoo.web"]
PAGE = b"<!DOCTYPE html><html><body>Sign in to continue</body></html>"
UNDETECTABLE = "another valid file, without a hash"


@dataclass(frozen=True)
class Fault:
    """A faulty server, and what a download from it gives.

    Attributes:
        name: of the test.
        server: attributes of the server.
        known: pattern of the error with the right hash given; None if the download succeeds.
        unknown: that without a hash.
    """

    name: str
    server: dict[str, object]
    known: str | None = None
    unknown: str | None = None


def refused(name: str, text: str, **server: object) -> Fault:
    """A fault that is an error with and without a hash."""
    return Fault(name, server, text, text)


FAULTS = [
    Fault("another file", {"content": NEW}, f"expected {SHA256}", UNDETECTABLE),
    Fault(
        "cut short, with a length to match",
        {"content": CONTENT[:-1]},
        "has sha256 .*; it is not a complete safetensors file",
        "has no tiny.safetensors: it is not a complete safetensors file",
    ),
    Fault(
        "cut short, without a length",
        {"has_length": False, "break_after": [700_000]},
        "has sha256 .*; it is not a complete",
        "it is not a complete safetensors file",
    ),
    Fault(
        "too long",
        {"content": CONTENT + b"x"},
        "has sha256 .*; it is not a complete",
        "it is not a complete safetensors file",
    ),
    Fault("empty", {"content": b""}, "has sha256 .*; it is empty", "it is empty"),
    Fault("a page", {"content": PAGE}, "has sha256 .*; it is a web page", "it is a web page"),
    refused(
        "compressed",
        "sent Content-Encoding gzip, which was not requested",
        headers={"Content-Encoding": "gzip"},
    ),
    refused(
        "redirect to a file",
        "'file:///etc/hostname' is not allowed",
        status=302,
        location="file:///etc/hostname",
    ),
    refused(
        "redirect to ftp",
        "redirected to ftp://127.0.0.1:9/x; expected an http or https address",
        status=301,
        location="ftp://127.0.0.1:9/x",
    ),
    refused("redirect in a circle", "infinite loop", status=302, location="/tiny.safetensors"),
    refused("redirect to nothing", "HTTP 307", status=307),
    *(refused(f"status {code}", f"HTTP {code}", status=code) for code in (400, 401, 403, 404, 410)),
    *(refused(f"status {n}", f"HTTP Error {n}", status=n) for n in (429, 500, 502, 504)),
    Fault("status 500 half-way", {"break_after": [500_000], "answers": [200, 500]}),
    refused(
        "status 404 half-way",
        "HTTP 404",
        break_after=[500_000],
        answers=[200, 404, 404],
    ),
    Fault("a range of words", {"break_after": [9_000], "wrong_range": "bytes all of them"}),
    Fault("a range from 0", {"break_after": [9_000], "wrong_range": f"bytes 0-{2**20 - 1}/*"}),
    Fault("a range that starts too late", {"break_after": [9_000], "lies": 1}),
    Fault("chunks", {"chunked": True}),
    Fault("chunks that end early", {"chunked": True, "break_after": [300_000]}),
    Fault("pieces with pauses", {"stall": (100_000, 0.02)}),
    Fault("a stall", {"stall": (300_000, 0.4)}),
    refused("no answer", "timed out", delay=0.3),
]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WEB, "TIMEOUT", 5)
    monkeypatch.setattr(DOWNLOAD, "ATTEMPTS", 3)


def check_cache(path: Path) -> None:
    """Nothing wrong has the final name, and no wrong hash is stored."""
    assert not path.exists() or path.read_bytes() == CONTENT
    stored = path.with_name(f"{path.name}.sha256")
    assert not stored.exists() or stored.read_text().strip() == SHA256


@pytest.mark.parametrize(
    ("server_faults", "sha256", "outcome"),
    [
        pytest.param(fault.server, sha256, outcome, id=f"{fault.name}, hash {known}")
        for fault in FAULTS
        for known, sha256, outcome in (
            ("known", SHA256, fault.known),
            ("unknown", None, fault.unknown),
        )
        if outcome != UNDETECTABLE
    ],
)
def test_fault(
    server_faults: dict[str, object],
    sha256: str | None,
    outcome: str | None,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if {"stall", "delay"} & server_faults.keys():
        monkeypatch.setattr(WEB, "TIMEOUT", 0.2)
    server.tag = '"1"'  # interrupted downloads of unknown hash are resumed, too
    for name, value in copy.deepcopy(server_faults).items():
        setattr(server, name, value)
    path = cache_path(server.url, sha256=sha256)

    if outcome is None:
        assert download(server.url, sha256=sha256) == path
    else:
        with pytest.raises(WeightsError, match=outcome) as error:
            download(server.url, sha256=sha256)
        assert server.url in str(error.value)
        assert not path.exists()
    check_cache(path)

    server.heal()
    monkeypatch.setattr(WEB, "TIMEOUT", 5)
    assert download(server.url, sha256=sha256).read_bytes() == CONTENT
    check_cache(path)
    monkeypatch.setenv("FFN_OFFLINE", "1")
    assert download(server.url, sha256=sha256) == path
    assert not list(path.parent.glob("*.part*"))


@pytest.mark.parametrize("cut", [1, *range(50_000, 2**20, 55_000), 2**20 - 1])
def test_a_transfer_that_is_cut_is_resumed_to_the_right_bytes(server: Server, cut: int) -> None:
    server.break_after = [cut]
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={cut}-"]


@pytest.mark.parametrize("name", ["x.pt", "x.pth", "x.safetensors", "x.pkl", "x.pth.tar", "x"])
def test_the_hash_of_a_page_is_never_stored(server: Server, cache: Path, name: str) -> None:
    server.content = PAGE
    with pytest.raises(WeightsError, match=f"has no {name}: it is a web page") as error:
        download(server.url, sha256=None, name=name)
    (aside,) = cache.glob("*.rejected")
    assert str(aside) in str(error.value)
    assert aside.read_bytes() == PAGE
    assert not list(cache.glob("*.sha256"))


@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("sha256", [SHA256, None])
def test_no_network(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    offline: bool,
    cached: bool,
    sha256: str | None,
) -> None:
    if cached:
        expected = download(server.url, sha256=sha256)
    server.shutdown()
    server.server_close()
    monkeypatch.setenv("FFN_OFFLINE", "1" if offline else "0")

    if cached:
        assert download(server.url, sha256=sha256) == expected
        return
    message = "FFN_OFFLINE is set" if offline else ": Connection refused"
    with pytest.raises(WeightsError, match=message) as error:
        download(server.url, sha256=sha256)
    path = cache_path(server.url, sha256=sha256)
    assert not path.exists()
    if offline:  # the message says how to do without a download
        path.parent.mkdir()
        path.write_bytes(CONTENT)
        assert f"copy it to {path}" in str(error.value)
        if sha256 is None:
            assert f"its SHA-256 to {path}.sha256" in str(error.value)
            Path(f"{path}.sha256").write_text(f"{SHA256}\n")
        assert download(server.url, sha256=sha256) == path


def start(work: Callable[..., object], *arguments: object) -> multiprocessing.Process:
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments, daemon=True)
    process.start()
    return process


def test_a_process_takes_over_from_one_that_is_killed(server: Server, cache: Path) -> None:
    server.stall = (300_000, 0.5)
    first = start(lambda: download(server.url, sha256=SHA256))
    part = cache / f"{SHA256[:16]}-tiny.safetensors.part"
    end = time.monotonic() + 20
    while not (part.exists() and part.stat().st_size):
        assert first.is_alive()
        assert time.monotonic() < end
        time.sleep(0.01)
    second = start(lambda: download(server.url, sha256=SHA256))  # waits for the lock
    time.sleep(0.05)
    assert server.ranges == [None]

    server.stall = None
    first.kill()
    first.join()
    second.join()

    assert second.exitcode == 0
    assert server.ranges[0] is None
    assert server.ranges[1].startswith("bytes=")
    assert part.with_suffix("").read_bytes() == CONTENT


def test_two_processes_refuse_a_wrong_file(server: Server, cache: Path) -> None:
    def refuse() -> None:
        with pytest.raises(WeightsError, match="has sha256"):
            download(server.url, sha256=OTHER)

    processes = [start(refuse), start(refuse)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    (kept,) = (path for path in cache.iterdir() if path.suffix != ".lock")
    assert kept.suffix == ".rejected"


def test_a_quota_is_reported_and_the_rest_is_fetched_later(server: Server, cache: Path) -> None:
    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
        with pytest.raises(WeightsError, match=r"weights: File too large\. Free space on its disk"):
            download(server.url, sha256=SHA256)

    process = start(fill)
    process.join()
    assert process.exitcode == 0
    assert server.ranges == [None]  # a new attempt would have the same error
    assert not (cache / f"{SHA256[:16]}-tiny.safetensors").exists()
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=400000-"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_is_reported(server: Server, cache: Path) -> None:
    part = cache / f"{SHA256[:16]}-tiny.safetensors.part"
    cache.mkdir()
    part.symlink_to("/dev/full")
    message = r"weights: No space left on device\. Free space .* FFN_HOME to a folder on another"
    with pytest.raises(WeightsError, match=message):
        download(server.url, sha256=SHA256)
    assert server.ranges == [None]
    assert not part.with_suffix("").exists()

    part.unlink()
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT
