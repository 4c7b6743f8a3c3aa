"""Local files of weights: fetched, and verified without changing anything."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from web_server import CONTENT, NEW, OTHER, SHA256, Server

from ffn.data import Preprocessing
from ffn.zoo import (
    WeightsError,
    download,
    fetch_weights,
    home,
    local,
    records,
    verify_weights,
)

SHIPPED = "tsm_tiny.motion_f4_8_16"


@pytest.fixture
def zoo(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo of one weight that ships, and of two at addresses, one with a known hash."""
    folder = tmp_path / "zoo"
    folder.mkdir()
    for path in records.zoo_folder().glob(f"{SHIPPED}.*"):
        shutil.copy(path, folder)
    base = {
        "model": "tsm_tiny",
        "num_classes": 3,
        "preprocessing": Preprocessing().to_dict(),
        "page": "https://example.org/page",
    }
    of_web = {"name": "tsm_tiny.web", "url": server.url, "sha256": SHA256, "size": len(CONTENT)}
    of_others = {
        "name": "tsm_tiny.others",
        "url": f"{server.url}?id=1",
        "source_format": "tsm",
    }
    for record in (base | of_web, base | of_others):
        (folder / f"{record['name']}.yaml").write_text(yaml.safe_dump(record))
    for module in (records, local):
        monkeypatch.setattr(module, "zoo_folder", lambda: folder)
    return folder


def verdicts(pattern: str = "*") -> dict[str, str]:
    return {verdict.name: verdict.status for verdict in verify_weights(pattern)}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_weights_are_fetched_once(zoo: Path, server: Server, cache: Path) -> None:
    path = fetch_weights("tsm_tiny.web")
    assert path == cache / f"{SHA256[:16]}-tiny.safetensors"
    assert path.read_bytes() == CONTENT
    assert fetch_weights("tsm_tiny.web") == path
    assert server.ranges == [None]
    assert fetch_weights(SHIPPED) == zoo / f"{SHIPPED}.safetensors"


def test_what_cannot_be_fetched(zoo: Path, server: Server) -> None:
    with pytest.raises(ValueError, match=r'no weights "tsm_tiny\.we" in .* did you mean tsm_'):
        fetch_weights("tsm_tiny.we")
    shipped = zoo / f"{SHIPPED}.safetensors"
    shipped.write_bytes(shipped.read_bytes() + b"x")
    with pytest.raises(WeightsError, match=r"1,295,393 bytes.* its record has baf3aa"):
        fetch_weights(SHIPPED)
    shipped.unlink()
    with pytest.raises(FileNotFoundError, match="no file"):
        fetch_weights(SHIPPED)
    server.status = 404
    message = r"HTTP 404 .*\. You may also download it manually from https://example\.org/page and"
    with pytest.raises(WeightsError, match=message):
        fetch_weights("tsm_tiny.others")


def test_verdicts_change_nothing(zoo: Path, server: Server, tmp_path: Path, cache: Path) -> None:
    assert verdicts() == {
        SHIPPED: "ok",
        "tsm_tiny.others": "not downloaded",
        "tsm_tiny.web": "not downloaded",
    }
    known = fetch_weights("tsm_tiny.web")
    server.content = b"\x80 a pickle"
    unknown = fetch_weights("tsm_tiny.others")
    server.content = CONTENT
    pinned = download(f"{server.url}?id=2", sha256=None, name="mine.safetensors")
    named = download(server.url, sha256=SHA256, name="named.safetensors")
    good = {SHIPPED, "tsm_tiny.others", "tsm_tiny.web", pinned.name, named.name}
    assert verdicts() == dict.fromkeys(good, "ok")

    for path in (known, unknown, pinned, named, zoo / f"{SHIPPED}.safetensors"):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for suffix in ("part", "part.version", "rejected", "12345678.part", "partabcdefgh.part"):
        Path(f"{known}.{suffix}").write_bytes(b"what a failed download leaves")
    before, asked = contents(tmp_path), len(server.ranges)

    assert verdicts() == dict.fromkeys(good, "differs")

    assert contents(tmp_path) == before
    assert len(server.ranges) == asked
    (of_name,) = verify_weights(named.name)
    assert of_name.detail.endswith(f"; if its SHA-256 was unknown, {named.name}.sha256 is missing")
    details = {verdict.name: verdict.detail for verdict in verify_weights("*tiny*")}
    assert details["tsm_tiny.web"].endswith(f", expected {SHA256}")
    assert str(known) in details["tsm_tiny.web"]
    assert set(details) == {SHIPPED, "tsm_tiny.others", "tsm_tiny.web"}


def test_a_file_without_its_hash_and_one_that_is_missing(zoo: Path, server: Server) -> None:
    server.content = b"\x80 a pickle"
    path = fetch_weights("tsm_tiny.others")
    Path(f"{path}.sha256").unlink()
    (zoo / f"{SHIPPED}.safetensors").unlink()
    found = {verdict.name: verdict for verdict in verify_weights()}
    assert found["tsm_tiny.others"].status == "no hash"
    assert found[SHIPPED].status == "missing"
    assert found[SHIPPED].detail == str(zoo / f"{SHIPPED}.safetensors")
    assert [v.is_problem for v in found.values()] == [True, True, False]


def test_a_damaged_record_of_a_repository_is_a_verdict(zoo: Path, server: Server) -> None:
    snapshot = home() / "hub/models--me--net/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes(CONTENT)
    (snapshot / "model.yaml").write_text("x: [")
    path = download(server.url, sha256=None)

    found = {verdict.name: verdict for verdict in verify_weights()}

    assert found[path.name].status == "ok"
    (damaged,) = (verdict for verdict in found.values() if verdict.status == "differs")
    assert "model.yaml is not a record of weights" in damaged.detail


def test_a_folder_named_like_a_download_is_passed_over(zoo: Path, server: Server) -> None:
    path = download(server.url, sha256=None)
    (path.parent / "0123456789abcdef-folder.safetensors").mkdir()

    assert verdicts("*-*") == {path.name: "ok"}


def test_another_file_at_the_address_is_found_later(zoo: Path, server: Server) -> None:
    """The stored hash is that of the first download, whatever the server has now."""
    path = download(server.url, sha256=None)
    path.write_bytes(NEW)
    assert verdicts(path.name) == {path.name: "differs"}
    Path(f"{path}.sha256").write_text(f"{OTHER}\n")
    assert verdicts(path.name) == {path.name: "differs"}
    path.write_bytes(b"other")
    assert verdicts(path.name) == {path.name: "ok"}
