"""Weights of the zoo at an address: fetched, converted, loaded."""

from __future__ import annotations

import numpy as np
import parity
import pytest
import torch
import yaml

from ffn.core import convert
from ffn.data import Preprocessing
from ffn.zoo import (
    WeightsError,
    create,
    create_model,
    load,
    records,
)


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
    assert len(server.paths) == 1


def test_a_page_in_place_of_the_file_is_reported_and_forgotten(server, published):
    checkpoint, page = server.content, b"<!DOCTYPE html><html>Virus scan warning</html>"
    server.content = page
    with pytest.raises(WeightsError, match=r"a web page.* from https://example\.org/page"):
        load("tsm_r18.web_f4_8_16")

    server.content = checkpoint  # the page's hash is not the one to expect
    assert load("tsm_r18.web_f4_8_16").trained_frames == (4, 8, 16)


def test_pretrained_starts_from_the_published_weights(server, published, monkeypatch):
    path = records.zoo_folder() / "tsm_r18.web_f4_8_16.yaml"
    monkeypatch.setitem(create.STARTS, "tsm_r18", "tsm_r18.web_f4_8_16")
    plain = parity.reference("tsm", create_model("tsm_r18", num_classes=5).state_dict())
    torch.save({"state_dict": plain}, path.with_suffix(".pth"))
    server.content = path.with_suffix(".pth").read_bytes()
    server_url = f"{server.url}?id=2"
    text = path.read_text().replace(f"{server.url}?id=1&export=download", server_url)
    path.write_text(text.replace("trained_frames:\n- 4\n- 8\n- 16\n", ""))

    model = create_model("tsm_r18", num_classes=9, pretrained=True)

    assert torch.equal(model.net.bn1.weight, plain["base_model.bn1.weight"])
    assert model.net.fc.out_features == 9
