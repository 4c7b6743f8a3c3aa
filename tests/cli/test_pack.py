from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ffn.cli import main
from ffn.datasets.synthetic import generate
from ffn.engine.build_data import build_train_loader, read_config_splits
from ffn.engine.config import ConfigError, load_config
from ffn.engine.distributed import World

CONFIG = """\
task:
  frames: [2, 4]
data:
  root: {root}
  workers: 0
  crop: 32
  resize: 36
train:
  batch_size: 4
"""
STORE = ["data.format=store"]
ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Videos of 36 pixels, of which one is unreadable, and a config."""
    root = tmp_path / "data"
    generate(root, train_per_class=1, val_per_class=1, size=36, frames=12)
    sorted((root / "videos").glob("val*"))[0].write_bytes(b"no video")
    (root / "config.yaml").write_text(CONFIG.format(root=root))
    return root


def train_batches(root: Path, *options: str) -> list[dict]:
    config = load_config(root / "config.yaml", options)
    return list(build_train_loader(config, read_config_splits(config.data), ALONE))


def test_a_run_switches_to_the_store_by_one_option(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(root / "config.yaml")
    assert main(["pack", config]) == 1  # one is unreadable
    shown = capsys.readouterr()
    assert "unreadable: videos/val" in shown.err
    assert "23 clips packed, 0 packed before, 1 unreadable" in shown.out

    for one, other in zip(train_batches(root), train_batches(root, *STORE), strict=True):
        assert torch.equal(one["index"], other["index"])
        assert torch.equal(one["label"], other["label"])
        clip, stored = one["clips"][4].double(), other["clips"][4].double()
        error, shuffled = (clip - stored).abs().mean(), (clip - stored.roll(1, 0)).abs().mean()
        assert 0 < 3 * error < shuffled  # JPEG


def test_appending_and_verifying_also_at_an_address(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    monkeypatch.setenv("FFN_HOME", str(tmp_path / "home"))
    config = str(root / "config.yaml")
    assert main(["pack", config, "data.train=val.csv"]) == 1
    assert main(["pack", config]) == 1
    assert "12 clips packed, 11 packed before" in capsys.readouterr().out
    address = f"data.store=file://{root / 'store'}"
    assert len(train_batches(root, *STORE, address)) == 3
    assert main(["pack", config, address]) == 2  # packs into folders alone
    assert main(["pack", config, address, "--verify"]) == 0
    assert "23 clips, 0 damaged" in capsys.readouterr().out
    assert len([*tmp_path.glob("home/stores/*/*-shard-*.bin")]) == 2
    kept_nowhere = [*STORE, address, "data.store_cache_gib=0"]
    assert len(train_batches(root, *kept_nowhere)) == 3
    assert not [*tmp_path.glob("home/stores/*/*-shard-*.bin")]

    shard = root / "store" / "shard-00001.bin"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert main(["pack", config, "--verify"]) == 1
    shown = capsys.readouterr()
    assert "23 clips, 1 damaged" in shown.out
    assert "damaged: videos/train" in shown.err


def test_errors(root: Path) -> None:
    for words in ("--quality 0", "--verify"):
        assert main(["pack", str(root / "config.yaml"), *words.split()]) == 2, words
    main(["pack", str(root / "config.yaml"), "--short-side", "34"])
    with pytest.raises(ConfigError, match=r"short side of 34 px; data\.resize is 36 px"):
        train_batches(root, *STORE)
