"""Which commands read a store at an address by ranges, and which download its shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from range_server import RangeServer

from ffn.cli import main
from ffn.data import Preprocessing
from ffn.datasets.synthetic import CLASSES, generate
from ffn.engine.build_data import build_train_loader, read_config_splits
from ffn.engine.config import load_config
from ffn.engine.distributed import World
from ffn.zoo import create_model, save_weights

pytest.importorskip("aiohttp")

CONFIG = """\
data:
  root: {root}
  workers: 0
  crop: 24
  resize: 28
  format: store
train:
  batch_size: 4
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed data set of one shard, with a config and a list of one video."""
    root = tmp_path_factory.mktemp("motion") / "data"
    generate(root, train_per_class=2, val_per_class=2, size=36, frames=30)
    (root / "config.yaml").write_text(CONFIG.format(root=root))
    header, first = (root / "val.csv").read_text().splitlines()[:2]
    (root / "few.csv").write_text(f"{header}\n{first}\n")
    assert main(["pack", str(root / "config.yaml"), "--format", "raw", "--shard-mib", "64"]) == 0
    return root


@pytest.fixture(scope="module")
def weights(root: Path) -> str:
    meta = {
        "model": "tsm_tiny",
        "num_classes": len(CLASSES),
        "classes": list(CLASSES),
        "preprocessing": Preprocessing(crop=24, resize=28).to_dict(),
    }
    model = create_model("tsm_tiny", num_classes=len(CLASSES))
    save_weights(model, root / "weights.safetensors", meta)
    return str(root / "weights.safetensors")


@pytest.fixture
def server(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    """A server of the store, and an empty cache."""
    monkeypatch.setenv("FFN_HOME", str(tmp_path / "home"))
    with RangeServer(root / "store").running() as server:
        yield server


def whole_shards(server: RangeServer) -> int:
    return sum("shard" in name and part is None for _, name, part in server.requests)


def ranges(server: RangeServer) -> int:
    return sum(part is not None for _, _, part in server.requests)


def test_browsing_requests_the_frames(root: Path, server: RangeServer, tmp_path: Path) -> None:
    given = [str(root / "config.yaml"), "--videos", "2", "--frames", "4"]
    assert main(["browse", *given, "--output", str(tmp_path / "local.png")]) == 0
    remote = f"data.store={server.address}"
    assert main(["browse", *given, remote, "--output", str(tmp_path / "remote.png")]) == 0
    pictures = [(tmp_path / f"{name}.png").read_bytes() for name in ("local", "remote")]
    assert pictures[0] == pictures[1]
    assert whole_shards(server) == 0
    assert ranges(server) >= 4
    assert server.sent < 2**20  # of several


@pytest.mark.parametrize(("val", "by_ranges"), [("few.csv", True), ("val.csv", False)])
def test_a_test_downloads_the_shards_unless_it_reads_little_of_them(
    val: str, by_ranges: bool, root: Path, weights: str, server: RangeServer, tmp_path: Path
) -> None:
    given = [str(root / "config.yaml"), "--weights", weights, "--frames", "4", "--no-latency"]
    tables = []
    for place, more in (("local", []), ("remote", [f"data.store={server.address}"])):
        output = tmp_path / place
        assert main(["test", *given, f"data.val={val}", *more, "--output", str(output)]) == 0
        tables.append((output / "results.csv").read_text())
    assert tables[0] == tables[1]
    assert (ranges(server) > 0) == by_ranges
    assert (whole_shards(server) == 0) == by_ranges


def test_training_downloads_the_shards(root: Path, server: RangeServer) -> None:
    config = load_config(root / "config.yaml", [f"data.store={server.address}"])
    splits = read_config_splits(config.data)
    splits = replace(splits, train=splits.train[:4])  # a small share makes no difference
    world = World(0, 1, torch.device("cpu"))
    for _ in build_train_loader(config, splits, world):
        pass
    assert whole_shards(server) >= 1
    assert ranges(server) == 0
