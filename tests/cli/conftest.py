from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import serve_files

from ffn.datasets.synthetic import generate


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with generated data, where the configs of the quickstart find it."""
    folder = tmp_path_factory.mktemp("work")
    generate(folder / "data/motion", train_per_class=1, val_per_class=1)
    return folder


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A network of three sub-networks; its answers depend on the video."""
    folder = tmp_path_factory.mktemp("weights")
    return str(serve_files.save_network(folder / "tiny.safetensors", spread=0.1))


@pytest.fixture(scope="session")
def videos(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two videos of 4 and 6 s."""
    folder, random = tmp_path_factory.mktemp("videos"), np.random.default_rng(3)
    paths = []
    for name, frames in (("a", 40), ("b", 60)):
        pixels = random.integers(0, 256, (frames, 40, 48, 3), np.uint8)
        paths.append(str(serve_files.write_video(folder / f"{name}.mp4", pixels, rate=10)))
    return paths


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder
