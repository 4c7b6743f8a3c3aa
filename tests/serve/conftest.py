"""Weights and videos that tests of predictions share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from serve_files import save_network, write_video


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FFN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """A network of three sub-networks, for ranges of counts."""
    return save_network(tmp_path_factory.mktemp("weights") / "tiny.safetensors")


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (11, 40, 48, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def mp4(tmp_path_factory, pixels) -> Path:
    """Eleven frames, 20 per second."""
    return write_video(tmp_path_factory.mktemp("video") / "noise.mp4", pixels, rate=20)
