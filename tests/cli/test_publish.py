from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ffn
from ffn.cli.publish import main
from ffn.data import Preprocessing
from ffn.engine.checkpoint import save_checkpoint
from ffn.zoo import load_with_record

NAME = "tsm_tiny.test_f2_4"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = ffn.convert(ffn.create_model("tsm_tiny", num_classes=3), (2, 4))
    meta = {
        "model": "tsm_tiny",
        "num_classes": 3,
        "classes": ["a", "b", "c"],
        "trained_frames": [2, 4],
        "private": "norms",
        "alter": "sites",
        "preprocessing": Preprocessing(crop=32, resize=36).to_dict(),
        "metrics": {"2": {"top1": 50.0}, "4": {"top1": 60.0}},
    }
    path = tmp_path / "best.pt"
    save_checkpoint(path, {"model": model.state_dict(), "meta": meta})
    return path


def test_a_published_network_is_the_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    options = ["--output", str(tmp_path), "--licence", "Apache-2.0", "--source", "a test"]

    assert main([str(checkpoint), NAME, *options]) == 0

    path = tmp_path / f"{NAME}.safetensors"
    model, record = load_with_record(path)
    clip = torch.randn(2, 3, 3, 32, 32)
    assert torch.equal(model(clip), ffn.load(checkpoint)(clip))
    assert (record.name, record.origin, record.licence) == (NAME, "measured", "Apache-2.0")
    assert record.metrics == {2: {"top1": 50.0}, 4: {"top1": 60.0}}
    assert record.trained_frames == (2, 4)


def test_nothing_is_overwritten(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{NAME}.safetensors"
    path.write_bytes(b"mine")

    assert main([str(checkpoint), NAME, "--output", str(tmp_path)]) == 2

    assert "exists" in capsys.readouterr().err
    assert path.read_bytes() == b"mine"
