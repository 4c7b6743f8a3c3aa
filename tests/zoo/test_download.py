"""Downloads: cached, atomic, checked by their hash; and the weights of the zoo that use them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import parity
import pytest
import torch
import yaml
from servers import CONTENT, SHA256

from ffn.core import convert
from ffn.data import Preprocessing
from ffn.zoo import WeightsError, create_model, download, fetch_weights, home, load, records

SHIPPED = "tsm_tiny.motion_f4_8_16"


def test_a_file_is_downloaded_once_and_used_without_a_connection(server, cache):
    """A damaged one, again."""
    path = download(server.url, sha256=SHA256)
    assert path.read_bytes() == CONTENT
    assert path == cache / f"{SHA256[:16]}-tiny.safetensors"

    path.write_bytes(CONTENT[:-1] + b"x")
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT
    server.stop()
    assert download(server.url, sha256=SHA256) == path
    assert len(server.paths) == 2


def test_a_broken_transfer_is_tried_again(server, cache):
    server.cuts, server.answers = [1000], [200, 503]
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT
    assert len(server.paths) == 3
    assert sorted(path.suffix for path in cache.iterdir()) == [".lock", ".safetensors"]


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_what_is_not_downloaded_leaves_no_file(server, cache, sha256, monkeypatch):
    server.answers = [404] * 9
    with pytest.raises(WeightsError, match=r"cannot download http://127.*404"):
        download(server.url, sha256=sha256)
    server.answers, server.cuts = [], [1000] * 9
    with pytest.raises(WeightsError, match="cannot download"):
        download(server.url, sha256=sha256)
    server.cuts, server.content = [], b"<!DOCTYPE html><html>Quota exceeded</html>"
    with pytest.raises(WeightsError, match="web page" if sha256 is None else SHA256):
        download(server.url, sha256=sha256)
    server.stop()
    with pytest.raises(WeightsError, match="cannot download"):
        download(server.url, sha256=sha256)
    monkeypatch.setenv("FFN_OFFLINE", "1")
    with pytest.raises(WeightsError, match="FFN_OFFLINE is set"):
        download(server.url, sha256=sha256)
    with pytest.raises(WeightsError, match="expected an http or https address"):
        download("file:///etc/hostname", sha256=sha256)
    assert not list(cache.glob("*safetensors"))


def test_an_unknown_hash_is_that_of_the_first_download(server, caplog):
    first = download(server.url, sha256=None, name="x.safetensors")
    assert f"the expected sha256 is unknown; {SHA256} is stored" in caplog.text
    assert download(server.url, sha256=None, name="x.safetensors") == first
    assert len(server.paths) == 1

    first.unlink()
    server.content += b"x"
    with pytest.raises(WeightsError, match=SHA256):
        download(server.url, sha256=None, name="x.safetensors")


@pytest.mark.slow
def test_two_processes_download_once(server):
    code = f"from ffn.zoo.download import download; download({server.url!r}, sha256={SHA256!r})"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait(120) for process in processes] == [0, 0]
    assert len(server.paths) == 1


def test_google_drive_is_read_by_gdown(monkeypatch):
    given = {}

    def fake(**options):
        given.update(options)
        with open(options["output"], "wb") as file:
            file.write(CONTENT)

    monkeypatch.setitem(sys.modules, "gdown", SimpleNamespace(download=fake))
    for url in (
        "https://drive.google.com/file/d/1a_B-c/view",
        "https://drive.usercontent.google.com/download?id=1a_B-c&export=download",
    ):
        assert download(url, sha256=SHA256).read_bytes() == CONTENT
        assert given["id"] == "1a_B-c"
        shutil.rmtree(home())
    monkeypatch.setitem(sys.modules, "gdown", None)
    with pytest.raises(WeightsError, match=r"frame-flexible\[drive\]"):
        download(url, sha256=SHA256)


@pytest.fixture
def zoo(server, tmp_path, monkeypatch):
    """A zoo of one weight that ships, and of two at addresses, one with a known hash."""
    folder = tmp_path / "zoo"
    folder.mkdir()
    for path in records.zoo_folder().glob(f"{SHIPPED}.*"):
        shutil.copy(path, folder)
    base = {"model": "tsm_tiny", "num_classes": 3, "preprocessing": Preprocessing().to_dict()}
    of_web = {"name": "tsm_tiny.web", "url": server.url, "sha256": SHA256}
    of_others = {"name": "tsm_tiny.others", "url": f"{server.url}?id=1", "source_format": "tsm"}
    for record in (of_web, of_others | {"page": "https://example.org/page"}):
        (folder / f"{record['name']}.yaml").write_text(yaml.safe_dump(base | record))
    for module in ("records", "fetch"):
        monkeypatch.setattr(f"ffn.zoo.{module}.zoo_folder", lambda: folder)
    return folder


def test_weights_are_fetched_and_compared(zoo, server):
    paths = [fetch_weights(name) for name in (SHIPPED, "tsm_tiny.web", "tsm_tiny.others")]
    for path in paths:
        path.write_bytes(path.read_bytes() + b"x")
    assert [fetch_weights(name) for name in ("tsm_tiny.web", "tsm_tiny.others")] == paths[1:]
    assert len(server.paths) == 4  # damaged copies are downloaded again
    with pytest.raises(WeightsError, match="its record has"):
        fetch_weights(SHIPPED)
    os.remove(paths[0])
    with pytest.raises(FileNotFoundError, match=SHIPPED):
        fetch_weights(SHIPPED)
    with pytest.raises(ValueError, match=r"did you mean tsm_tiny\.web"):
        fetch_weights("tsm_tiny.we")
    (zoo / "tsm_tiny.copy.yaml").write_bytes((zoo / "tsm_tiny.web.yaml").read_bytes())
    with pytest.raises(WeightsError, match=r'has the name "tsm_tiny\.web"'):
        fetch_weights("tsm_tiny.copy")
    os.remove(paths[2])
    server.answers = [404] * 9
    with pytest.raises(WeightsError, match=r"404.*https://example\.org/page.*convert_checkpoint"):
        fetch_weights("tsm_tiny.others")


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
    """A page in place of the file is reported and forgotten; its hash is not the one to expect."""
    checkpoint, server.content = server.content, b"<!DOCTYPE html><html>Virus scan warning</html>"
    with pytest.raises(WeightsError, match=r"a web page.* from https://example\.org/page"):
        load("tsm_r18.web_f4_8_16")

    server.content = checkpoint
    for _ in range(2):
        model = load("tsm_r18.web_f4_8_16")
    assert len(server.paths) == 2
    theirs = published["module.base_model.layer2.0.bn1_8.weight"]
    assert torch.equal(model.state_dict()["net.layer2.0.bn1.8.weight"], theirs)
