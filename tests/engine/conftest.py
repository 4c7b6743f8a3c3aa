from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_toys import train, write_videos
from forked import Ranks

from ffn.engine.checkpoints import load_checkpoint, save_checkpoint


@pytest.fixture(scope="session")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_videos(tmp_path_factory.mktemp("videos"))


@pytest.fixture(scope="session")
def finished(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(videos, tmp_path_factory.mktemp("runs") / "finished")


@pytest.fixture(scope="session")
def start(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Option: start from weights with logits far from zero, so that the KL is not negligible."""
    content = load_checkpoint(finished / "last.pt")
    content["model"]["net.fc.weight"] *= 30
    path = tmp_path_factory.mktemp("start") / "start.pt"
    save_checkpoint(path, content)
    return f"model.weights={path}"


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(2, tmp_path_factory.mktemp("two"))
    yield ranks
    ranks.close()
