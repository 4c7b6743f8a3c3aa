"""Weights and videos that tests of predictions share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from serve_files import save_network, write_video

from ffn.serve import Predictor


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FFN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def weights(tmp_path_factory) -> Path:
    """A network of three sub-networks, for ranges of counts; its answers depend on the video."""
    folder = tmp_path_factory.mktemp("weights")
    return save_network(folder / "tiny.safetensors", spread=0.1)


@pytest.fixture(scope="module")
def predictor(weights) -> Predictor:
    return Predictor(weights, precision="fp32")


@pytest.fixture(scope="session")
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (11, 40, 48, 3), dtype=np.uint8)


@pytest.fixture(scope="session")
def mp4(tmp_path_factory, pixels) -> Path:
    """Eleven frames, 20 per second, lossless."""
    return write_video(tmp_path_factory.mktemp("video") / "noise.mp4", pixels, rate=20)


@pytest.fixture(scope="session")
def footage() -> np.ndarray:
    """Seventy frames that differ."""
    return np.random.default_rng(1).integers(0, 256, (70, 40, 48, 3), dtype=np.uint8)
