from __future__ import annotations

from pathlib import Path

import pytest
from video_fixtures import write_folder, write_video  # noqa: F401  fixtures of all tests here

from ffn.datasets.synthetic import generate


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with generated data, where the configs of the quickstart find it."""
    folder = tmp_path_factory.mktemp("work")
    generate(folder / "data/motion", train_per_class=1, val_per_class=1)
    return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder
