"""A small trained-looking network with its description, and a local web server."""

from __future__ import annotations

import functools
import sys
import time

import huggingface_hub
import pytest
import torch
from hub_server import serving_hub
from web_server import Server, serving

from ffn.core import convert
from ffn.zoo import create_model

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
    "metrics": {"2": {"top1": 50.0}, "4": {"top1": 60.0}},
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


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Downloads go to a folder of the test; attempts follow each other at once."""
    monkeypatch.setenv("FFN_HOME", str(tmp_path))
    monkeypatch.setattr(sys.modules["ffn.zoo.web"], "PAUSE", 0.0)
    return tmp_path / "weights"


@pytest.fixture
def server(cache):
    """A local web server; see `web_server`."""
    with serving(Server()) as server:
        yield server


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Requests for the Hub reach a local server; its repository has a network."""
    monkeypatch.setenv("FFN_HOME", str(tmp_path / "home"))
    with serving_hub(tmp_path / "repository") as server:
        local = functools.partial(huggingface_hub.hf_hub_download, endpoint=server.url)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", local)
        yield server


@pytest.fixture
def _at_once(monkeypatch) -> None:
    """huggingface_hub's new attempts follow each other at once."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def scramble(model):
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.add_(0.3 * torch.rand_like(tensor))
    return model.eval()
