"""Several addresses of a file, and mirrors: tried in order, trusted through the hash alone."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from web_server import CONTENT, NEW, OTHER, SHA256, Server, serving

from ffn.data import Preprocessing
from ffn.zoo import WeightRecord, WeightsError, download, fetch_weights, records
from ffn.zoo.download import mirrors

DOWNLOAD = sys.modules["ffn.zoo.download"]
NAME = f"{SHA256[:16]}-tiny.safetensors"


@pytest.fixture
def mirror(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A second server, which FFN_MIRRORS names."""
    with serving(Server()) as mirror:
        mirror.base = mirror.url.removesuffix("/tiny.safetensors") + "/copies/ffn"
        monkeypatch.setenv("FFN_MIRRORS", f" {mirror.base}/ ")
        yield mirror


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_addresses_are_tried_in_order(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.answers = [404, 403]
    base = server.url.removesuffix("/tiny.safetensors")
    addresses = [f"{base}/a/tiny.safetensors", f"{base}/b", f"{base}/c", f"{base}/d"]

    path = download(addresses, sha256=SHA256)

    assert path.name == NAME
    assert path.read_bytes() == CONTENT
    assert server.paths == ["/a/tiny.safetensors", "/b", "/c"]
    first, second = warnings(caplog)
    assert first.startswith(f"cannot download {addresses[0]}: HTTP 404")
    assert first.endswith(f"trying the next address, {addresses[1]}")
    assert second.endswith(f"trying the next address, {addresses[2]}")


def test_all_causes_are_in_the_error(server: Server, mirror: Server) -> None:
    server.answers, server.content, mirror.status = [404], NEW, 403
    found = hashlib.sha256(NEW).hexdigest()
    with pytest.raises(WeightsError) as error:
        download([f"{server.url}?1", f"{server.url}?2"], sha256=SHA256)
    head, first, second, third = str(error.value).splitlines()
    assert head == "none of 3 addresses gave " + NAME + ":"
    assert first == f"  cannot download {mirror.base}/{NAME}: HTTP 403 Forbidden"
    assert second == f"  cannot download {server.url}?1: HTTP 404 Not Found"
    assert third.startswith(f"  {server.url}?2 has sha256 {found}, expected {SHA256}")


def test_a_mirror_comes_first_and_is_a_copy_of_the_cache(
    server: Server, mirror: Server, tmp_path: Path
) -> None:
    path = download(server.url, sha256=SHA256)
    assert mirror.paths == [f"/copies/ffn/{NAME}"]
    assert path == tmp_path / "weights" / NAME
    assert server.paths == []


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ({"content": NEW}, "has sha256"),
        ({"content": b"<html>log in</html>"}, "it is a web page"),
        ({"content": CONTENT[:-1]}, "has sha256"),
        ({"status": 404}, "HTTP 404"),
        ({"status": 503}, "HTTP Error 503"),
        ({"status": 302, "location": "file:///etc/hostname"}, "not allowed"),
        ({"break_after": [100, 100, 0, 0, 0]}, "interrupted"),
    ],
    ids=["another file", "a page", "too short", "404", "503", "redirect", "interrupted"],
)
def test_a_wrong_mirror_is_a_warning(
    server: Server,
    mirror: Server,
    caplog: pytest.LogCaptureFixture,
    fault: dict[str, object],
    cause: str,
) -> None:
    for name, value in fault.items():
        setattr(mirror, name, value)

    path = download(server.url, sha256=SHA256)

    assert path.read_bytes() == CONTENT
    assert server.ranges == [None]  # nothing of the mirror is continued
    (warning,) = warnings(caplog)
    assert mirror.base in warning
    assert cause in warning
    assert not list(path.parent.glob("*.part*"))


def test_a_mirror_that_is_down_is_tried_twice(
    server: Server, mirror: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.status = 503
    download(server.url, sha256=SHA256)
    assert len(mirror.paths) == 2

    monkeypatch.setenv("FFN_MIRRORS", "http://127.0.0.1:9/ffn")  # nobody listens
    (Path(DOWNLOAD.home()) / "weights" / NAME).unlink()
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT


def test_each_address_resumes_its_own_part(
    server: Server, mirror: Server, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setattr(DOWNLOAD, "ATTEMPTS", 1)
    monkeypatch.setattr(DOWNLOAD, "ATTEMPTS_BEFORE_NEXT", 1)
    mirror.break_after, server.break_after = [300_000], [400_000]
    with pytest.raises(WeightsError, match="none of 2 addresses"):
        download(server.url, sha256=SHA256)
    assert sorted(path.stat().st_size for path in cache.glob("*.part")) == [300_000, 400_000]

    mirror.status = 404
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=400000-"]
    assert not list(cache.glob("*.part*"))


def test_without_a_hash_no_mirror_and_no_second_address_is_used(
    server: Server, mirror: Server
) -> None:
    server.answers = [404]
    message = r"HTTP 404 Not Found\. The sha256 is unknown: 1 further addresses are not used$"
    with pytest.raises(WeightsError, match=message):
        download([server.url, f"{server.url}?2"], sha256=None)

    path = download([server.url, f"{server.url}?2"], sha256=None)
    assert mirror.paths == []
    assert server.paths == ["/tiny.safetensors"] * 2

    path.unlink()  # its hash is stored now
    mirror.content = NEW
    assert download([server.url, f"{server.url}?2"], sha256=None).read_bytes() == CONTENT
    assert mirror.paths == [f"/copies/ffn/{path.name}"]
    path.unlink()
    mirror.content = CONTENT
    assert download(server.url, sha256=None).read_bytes() == CONTENT
    assert len(server.paths) == 3


def test_a_name_is_quoted(mirror: Server, server: Server) -> None:
    path = download(server.url, sha256=SHA256, name="a b?.safetensors")
    assert mirror.paths == [f"/copies/ffn/{SHA256[:16]}-a%20b%3F.safetensors"]
    assert path.name == f"{SHA256[:16]}-a b?.safetensors"


def test_offline_forbids_mirrors(
    server: Server, mirror: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FFN_OFFLINE", "1")
    with pytest.raises(WeightsError, match="FFN_OFFLINE is set"):
        download(server.url, sha256=SHA256)
    assert mirror.paths == []


@pytest.mark.parametrize("value", ["", "  ", None])
def test_no_mirrors(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("FFN_MIRRORS", raising=False)
    if value is not None:
        monkeypatch.setenv("FFN_MIRRORS", value)
    assert mirrors() == []


def test_several_mirrors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFN_MIRRORS", "https://a.org/ffn/ http://b:8080\n hf://me/weights")
    assert mirrors() == ["https://a.org/ffn", "http://b:8080", "hf://me/weights"]


@pytest.mark.parametrize(
    "wrong", ["mirror.local/ffn", "/mnt/ffn", "file:///mnt/ffn", "ftp://a.org", "https://a?t=1"]
)
def test_what_is_no_mirror(server: Server, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("FFN_MIRRORS", f"https://a.org {wrong}")
    with pytest.raises(ValueError, match=r"FFN_MIRRORS has '.*'; expected http, https or hf"):
        download(server.url, sha256=SHA256)
    assert server.paths == []


def test_no_address_at_all() -> None:
    with pytest.raises(WeightsError, match="without an address"):
        download([], sha256=SHA256)
    with pytest.raises(WeightsError, match="cannot download 'ftp://a/b'"):
        download(["https://a/b", "ftp://a/b"], sha256=OTHER)


RECORD = {
    "name": "tsm_tiny.web",
    "model": "tsm_tiny",
    "num_classes": 3,
    "preprocessing": Preprocessing().to_dict(),
    "sha256": SHA256,
}


def test_a_record_with_several_addresses(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = RECORD | {"url": [f"{server.url}?1", server.url]}
    record = WeightRecord.from_dict(given)
    assert record.addresses == tuple(given["url"])
    assert record.to_dict()["url"] == given["url"]
    folder = tmp_path / "zoo"
    folder.mkdir()
    (folder / "tsm_tiny.web.yaml").write_text(yaml.safe_dump(record.to_dict()))
    monkeypatch.setattr(records, "zoo_folder", lambda: folder)
    server.answers = [404]

    assert fetch_weights("tsm_tiny.web").read_bytes() == CONTENT
    assert server.paths == ["/tiny.safetensors?1", "/tiny.safetensors"]


def test_a_record_with_one_address_or_none() -> None:
    assert WeightRecord.from_dict(RECORD | {"url": "https://a/b"}).addresses == ("https://a/b",)
    assert WeightRecord.from_dict(RECORD).addresses == ()


@pytest.mark.parametrize("url", [["https://a/b", ""], ["https://a/b", 3], "", 3, {"a": 1}])
def test_addresses_that_are_none(url: object) -> None:
    with pytest.raises(ValueError, match=r"url is .*; expected an address, or a list"):
        WeightRecord.from_dict(RECORD | {"url": url})
