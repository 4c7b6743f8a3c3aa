"""Publishing a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ffn
from ffn import cli
from ffn.data import Preprocessing
from ffn.engine.checkpoints import save_checkpoint
from ffn.evaluation import Row, Sweep, save_table
from ffn.zoo import WeightRecord, load_with_record, save_weights

NAME = "tsm_tiny.test_f2_4"


def main(arguments: list[str]) -> int:
    return cli.main(["publish", *arguments])


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = ffn.convert(ffn.create_model("tsm_tiny", num_classes=3), (2, 4))
    meta = {
        "model": "tsm_tiny",
        "num_classes": 3,
        "classes": ["a", "b", "c"],
        "trained_frames": [2, 4],
        "preprocessing": Preprocessing(crop=32, resize=36).to_dict(),
        "metrics": {"2": {"top1": 50.0}, "4": {"top1": 60.0}},
        "config": {
            "data": {
                "root": "/home/me/clips",
                "train": "/home/me/lists/train.csv",
                "store": "s3://my-bucket/stores/videos",
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
    options = ["--output", str(tmp_path), "--licence", "Apache-2.0", "--knows", "3 letters"]

    assert main([str(checkpoint), NAME, *options]) == 0

    path = tmp_path / f"{NAME}.safetensors"
    model, record = load_with_record(path)
    clip = torch.randn(2, 3, 3, 32, 32)
    assert torch.equal(model(clip), ffn.load(checkpoint)(clip))
    assert (record.name, record.origin, record.licence) == (NAME, "measured", "Apache-2.0")
    assert record.knows == "3 letters"
    assert record.metrics == {2: {"top1": 50.0}, 4: {"top1": 60.0}}
    assert record.trained_frames == (2, 4)
    assert record.config == {
        "data": {"train": "train.csv", "store": "videos", "crop": 32},
        "log": {"interval": 5},
        "model": {"name": "tsm_tiny", "weights": "last.pt"},
        "imports": ["my_package"],
    }


def results_of(checkpoint: Path, *names: str, **changes: object) -> Path:
    """A results.json; the networks of these names have a top-1 of 60, 61, …."""
    params = sum(p.numel() for p in ffn.load(checkpoint).parameters())
    sweeps = []
    for top1, name in enumerate(names, 60):
        rows = (Row(4, 4, {"top1": top1}, 1.0, 10, None, 8, 0),)
        sweep = Sweep(name, (2, 4), params, (32, 32), rows, failed=(), measured={})
        sweeps.append(replace(sweep, **changes))
    save_table(sweeps, checkpoint.parent)
    return checkpoint.parent / "results.json"


@pytest.mark.slow
def test_results_with_the_name_of_the_checkpoint(checkpoint: Path, tmp_path: Path, capsys) -> None:
    """As `ffn test` names it: with as many folders as differ."""
    given = [str(checkpoint), NAME, "--output", str(tmp_path), "--overwrite", "--results"]
    run, above = tmp_path.name, tmp_path.parent.name
    results = results_of(checkpoint, f"other/{run}/best", f"{above}/{run}/best")
    assert main([*given, str(results)]) == 0
    assert load_with_record(tmp_path / f"{NAME}.safetensors")[1].metrics[4]["top1"] == 61
    for name, changes in (("other/best", {}), (f"{run}/best", {"trained_frames": (2, 8)})):
        assert main([*given, str(results_of(checkpoint, name, **changes))]) == 2
        assert "ffn test" in capsys.readouterr().err


def test_published_weights_are_published_again(checkpoint: Path, tmp_path: Path) -> None:
    """Source, licence and the origin of the metrics stay, unless others are given."""
    first, again = tmp_path / "first", str(tmp_path / "again")
    model = load_with_record(checkpoint)[0]
    meta = load_with_record(checkpoint)[1].to_dict() | {"name": NAME, "origin": "reported"}
    path = first / f"{NAME}.safetensors"
    save_weights(model, path, meta | {"source": "a test", "licence": "MIT"})

    def published(*more: str) -> WeightRecord:
        assert main([str(path), NAME, "--output", again, "--overwrite", *more]) == 0
        return load_with_record(Path(again) / f"{NAME}.safetensors")[1]

    record = published()
    assert (record.source, record.licence, record.origin) == ("a test", "MIT", "reported")
    record = published("--source", "another", "--results", str(results_of(checkpoint, NAME)))
    assert (record.source, record.licence, record.origin) == ("another", "MIT", "measured")
    assert record.metrics[4]["top1"] == 60


def test_what_is_refused_before_files_are_written(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(checkpoint), NAME, "--output", str(tmp_path)]
    for wrong, named in ((["--hub", "me/net@v1"], "user/name"), (["--private"], "--hub")):
        assert main([*given, *wrong]) == 2
        assert named in capsys.readouterr().err
    for name in ("../outside", "a/b", str(tmp_path / "absolute"), ".."):
        assert main([str(checkpoint), name, "--output", str(tmp_path / "inside")]) == 2
    assert list(tmp_path.iterdir()) == [checkpoint]
    path = tmp_path / f"{NAME}.safetensors"
    path.write_bytes(b"mine")
    assert main(given) == 2
    assert path.read_bytes() == b"mine"
    assert main([*given, "--overwrite"]) == 0
    assert path.read_bytes() != b"mine"
