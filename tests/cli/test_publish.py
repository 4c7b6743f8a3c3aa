"""Publishing a checkpoint, and models of other packages in all commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ffn
from ffn.cli.publish import main
from ffn.data import Preprocessing
from ffn.engine.checkpoints.file import save_checkpoint
from ffn.evaluation import Row, Sweep, save_table
from ffn.zoo import load_with_record

ROOT = Path(__file__).parents[2]
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
        "config": {
            "data": {
                "root": "/home/me/clips",
                "train": "/home/me/lists/train.csv",
                "store": "s3://my-bucket/stores/films",
                "crop": 32,
            },
            "log": {"output": "/home/me/runs/x", "interval": 5},
            "model": {"name": "tsm_tiny", "weights": "~/runs/part_1/last.pt"},
            "imports": ["my_package"],
        },
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
    assert record.config == {
        "data": {"train": "train.csv", "store": "films", "crop": 32},
        "log": {"interval": 5},
        "model": {"name": "tsm_tiny", "weights": "last.pt"},
        "imports": ["my_package"],
    }


def test_results_of_several_networks(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the checkpoint have the end of its path as name, as tools/test.py names them."""

    def publish(**networks: float) -> int:
        sweeps = [
            Sweep(
                name.replace("_", "/"),
                (2, 4),
                10,
                (32, 32),
                (Row(4, 4, top1, 90.0, top1, 1.0, 10, None, 8, 0),),
                failed=(),
                measured={},
            )
            for name, top1 in networks.items()
        ]
        save_table(sweeps, tmp_path)
        options = ["--output", str(tmp_path), "--overwrite"]
        return main([str(checkpoint), NAME, *options, "--results", str(tmp_path / "results.json")])

    def published() -> float:
        return load_with_record(tmp_path / f"{NAME}.safetensors")[1].metrics[4]["top1"]

    assert publish(other_best=50.0, best=70.0) == 0
    assert published() == 70
    assert publish(anything=60.0) == 0
    assert published() == 60
    assert publish(other_best=50.0, another_best=60.0) == 2
    assert "holds the networks other/best, another/best; expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("protocol", "recorded"),
    [("1x1", None), ("10x3", "3 crops x 10 clips"), ("4x1", "1 crop x 4 clips")],
)
def test_the_protocol_of_the_results(
    checkpoint: Path, tmp_path: Path, protocol: str, recorded: str | None
) -> None:
    row = Row(4, 4, 70.0, 90.0, 70.0, 1.0, 10, None, 8, 0)
    sweep = Sweep("best", (2, 4), 10, (32, 32), (row,), failed=(), measured={}, protocol=protocol)
    save_table([sweep], tmp_path)

    options = ["--output", str(tmp_path), "--results", str(tmp_path / "results.json")]
    assert main([str(checkpoint), NAME, *options]) == 0

    assert load_with_record(tmp_path / f"{NAME}.safetensors")[1].protocol == recorded


def test_the_cascade_of_replaced_weights_goes(checkpoint: Path, tmp_path: Path, capsys) -> None:
    kept = tmp_path / f"{NAME}.cascade.safetensors"
    kept.write_bytes(b"of other weights")

    assert main([str(checkpoint), NAME, "--output", str(tmp_path)]) == 2
    assert f"{kept.name} exists" in capsys.readouterr().err
    assert main([str(checkpoint), NAME, "--output", str(tmp_path), "--overwrite"]) == 0

    assert not kept.exists()


def test_nothing_is_overwritten(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{NAME}.safetensors"
    path.write_bytes(b"mine")

    assert main([str(checkpoint), NAME, "--output", str(tmp_path)]) == 2

    assert "exists" in capsys.readouterr().err
    assert path.read_bytes() == b"mine"
    assert main([str(checkpoint), NAME, "--output", str(tmp_path), "--overwrite"]) == 0
    assert path.read_bytes() != b"mine"


PACKAGE = """
import torch
from torch import nn
from ffn.backbones import register
from ffn.layers import AlterationSite, check_clip


@register
class MyNet(nn.Module):
    def __init__(self, *, num_classes: int = 400) -> None:
        super().__init__()
        self.site = AlterationSite(3)
        self.conv = nn.Conv3d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm3d(8)
        self.head = nn.Linear(8, num_classes)

    def forward(self, clip):
        check_clip(clip)
        return self.head(self.norm(self.conv(self.site(clip))).relu().mean((2, 3, 4)))
"""


def run(tmp_path: Path, tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / f"{tool}.py"), *arguments]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)


@pytest.mark.slow
def test_a_backbone_of_another_package_is_converted_published_and_exported(
    tmp_path: Path,
) -> None:
    """The package is in the current folder; every command needs --imports."""
    (tmp_path / "my_package.py").write_text(PACKAGE)
    names = {"conv.weight": (8, 3, 3, 3, 3), "conv.bias": (8,), "head.weight": (5, 8)}
    names |= {"head.bias": (5,)} | {f"norm.{n}": (8,) for n in ("weight", "bias", "running_mean")}
    state = {key: torch.randn(shape) for key, shape in names.items()}
    state |= {"norm.running_var": torch.rand(8) + 0.5, "norm.num_batches_tracked": torch.tensor(9)}
    torch.save(state, tmp_path / "theirs.pth")
    imports = ["--imports", "my_package"]

    convert = ["theirs.pth", "mine.safetensors", "--model", "MyNet", "--from", "uniformer"]
    convert += ["--trained-frames", "2", "4"]
    assert 'no model "MyNet"' in run(tmp_path, "convert_checkpoint", *convert).stderr
    done = run(tmp_path, "convert_checkpoint", *convert, *imports)
    assert done.returncode == 0, done.stderr
    assert "imports:\n- my_package\n" in (tmp_path / "mine.yaml").read_text()

    publish = ["mine.safetensors", "MyNet.toy_f2_4"]
    refused = run(tmp_path, "publish", *publish)
    assert refused.returncode == 2
    assert "pass --imports my_package to a command" in refused.stderr
    done = run(tmp_path, "publish", *publish, *imports)
    assert done.returncode == 0, done.stderr
    assert "imports:\n- my_package\n" in (tmp_path / "MyNet.toy_f2_4.yaml").read_text()

    export = ["--weights", "MyNet.toy_f2_4.safetensors", "--frames", "4", "--size", "16"]
    done = run(tmp_path, "export", *export, "--output", "net.pt2", *imports)
    assert done.returncode == 0, done.stderr
    assert "sub-network of 4 frames" in done.stdout
