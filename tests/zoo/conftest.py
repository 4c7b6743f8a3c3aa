"""A small trained-looking network with its description, and local servers."""

from __future__ import annotations

import functools
import time
from pathlib import Path

import huggingface_hub
import pytest
import torch
from servers import HubHandler, serving

from ffn.core import convert
from ffn.zoo import create_model, save_weights

META = {
    "model": "tsm_tiny",
    "model_args": {"width": 8},
    "num_classes": 3,
    "classes": ["left", "right", "still"],
    "trained_frames": [2, 4],
    "private": "norms",
    "alter": "sites",
    "preprocessing": {
        "crop": 32,
        "resize": 32,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.25, 0.25, 0.25],
        "color": "rgb",
        "sampling": "segment",
    },
    "metrics": {"2": {"top1": 50.0}, "4": {"top1": 60.25, "top5": 99.0}},
    "origin": "measured",
    "licence": "Apache-2.0",
    "knows": "3 ways to move",
    "config": {"task": {"frames": [2, 4]}},
}


@pytest.fixture
def meta():
    """Description of `network`, as a checkpoint carries it."""
    return dict(META)


@pytest.fixture
def plain_meta(meta):
    """Description of `plain`, as a training of a plain network writes it."""
    return meta | {"trained_frames": None, "private": None, "alter": None}


@pytest.fixture
def plain():
    """A plain network whose parameters and statistics all differ from a fresh one's."""
    return scramble(create_model("tsm_tiny", num_classes=3, width=8))


@pytest.fixture
def network():
    """A frame-flexible network whose parameters and statistics all differ from a fresh one's."""
    return scramble(convert(create_model("tsm_tiny", num_classes=3, width=8), (2, 4)))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Downloads go to a folder of the test; new attempts follow each other at once."""
    monkeypatch.setenv("FFN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    return tmp_path / "home/weights"


@pytest.fixture
def server():
    """A local web server; see `servers`."""
    with serving() as server:
        yield server


@pytest.fixture
def hub(tmp_path, monkeypatch, network, meta):
    """Requests for the Hub reach a local server; its repository me/net has a network."""
    save_weights(network, tmp_path / "repository/model.safetensors", meta)
    with serving(HubHandler, tmp_path / "repository") as server:
        local = functools.partial(huggingface_hub.snapshot_download, endpoint=server.address)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", local)
        yield server


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return open, (str(self.path), "w")


@pytest.fixture
def payload(tmp_path):
    """An object whose unpickling creates the file `payload.path`."""
    return Payload(tmp_path / "executed")


def scramble(model):
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.add_(0.3 * torch.rand_like(tensor))
    return model.eval()
