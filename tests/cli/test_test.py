from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ffn.cli.test import main
from ffn.core import convert
from ffn.data import Preprocessing, read_classes
from ffn.datasets.synthetic import generate
from ffn.evaluation import load_predictions, load_table
from ffn.zoo import create_model, save_weights

# One configuration for every test here: clips of 32 pixels from generated videos.
CONFIG = """\
data:
  root: {root}
  workers: 0
  on_error: skip
  test_frames: [3]
log:
  output: {root}/run
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos, of which one is broken, a config, and weights of a flexible and a plain network."""
    root = tmp_path_factory.mktemp("motion") / "data"
    generate(root, train_per_class=1, val_per_class=1, size=36, frames=12)
    sorted((root / "videos").glob("val*"))[0].write_bytes(b"no video")
    (root / "config.yaml").write_text(CONFIG.format(root=root))

    classes = read_classes(root / "classes.txt")
    torch.manual_seed(0)
    plain = create_model("tsm_tiny", num_classes=len(classes))
    meta = {
        "model": "tsm_tiny",
        "num_classes": len(classes),
        "classes": classes,
        "preprocessing": Preprocessing(crop=32, resize=36).to_dict(),
    }
    save_weights(plain, root / "plain.safetensors", meta | {"config": {"task": {"frames": [8]}}})
    flexible = convert(plain, (2, 4))
    save_weights(flexible, root / "flexible.safetensors", meta | {"trained_frames": (2, 4)})
    return root


def test_networks_are_tested_at_the_given_frames(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = [str(root / f"{name}.safetensors") for name in ("flexible", "plain")]
    arguments = ["--frames", "5", "2", "--no-latency", "--save-predictions"]

    status = main([str(root / "config.yaml"), "--weights", *weights, *arguments])

    assert status == 0
    flexible, plain = load_table(root / "run" / "test" / "results.json")
    assert (flexible.name, plain.name) == ("flexible", "plain")
    assert [(row.frames, row.subnet) for row in flexible.rows] == [(2, 2), (5, 4)]
    assert [(row.frames, row.subnet) for row in plain.rows] == [(2, None), (5, None)]
    assert plain.trained_frames == (8,)
    assert len(plain.failed) == 1
    assert plain.crop == (32, 32)
    kept = load_predictions(root / "run" / "test" / "flexible.predictions.safetensors")
    assert kept.logits[5].shape == (12, 12)  # one video of each class
    screen = capsys.readouterr().out
    assert str(root / "run" / "test" / "results.png") in screen
    assert "1 of 12 videos could not be decoded" in screen


def test_protocol_of_the_command_goes_before_that_of_the_config(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = ["--weights", str(root / "plain.safetensors"), "--no-latency"]
    found = {}
    for name, more in {
        "default": [],
        "config": ["data.test_protocol=1x3"],
        "command": ["data.test_protocol=1x3", "--protocol", "2x1"],
    }.items():
        output = tmp_path / name
        status = main([str(root / "config.yaml"), *weights, "--output", str(output), *more])
        assert status == 0
        found[name] = load_table(output / "results.json")[0]

    assert {name: sweep.protocol for name, sweep in found.items()} == {
        "default": "1x1",
        "config": "1x3",
        "command": "2x1",
    }
    assert {name: sweep.crop for name, sweep in found.items()} == {
        "default": (32, 32),
        "config": (36, 36),
        "command": (32, 32),
    }
    assert all(sweep.rows[0].videos == 12 for sweep in found.values())
    assert main([str(root / "config.yaml"), *weights, "--protocol", "2x2"]) == 2
    assert "2x2 is unknown; expected CLIPSxCROPS" in capsys.readouterr().err


def test_overrides_and_the_frames_of_the_config_are_used(root: Path, tmp_path: Path) -> None:
    config, weights = str(root / "config.yaml"), str(root / "plain.safetensors")

    status = main([config, "--weights", weights, "--output", str(tmp_path), "data.workers=0"])

    assert status == 0
    assert [row.frames for row in load_table(tmp_path / "results.json")[0].rows] == [3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weights", "tsm_tinny"], 'no weights "tsm_tinny"'),
        (["data.on_error=fail", "--weights", "{root}/plain.safetensors"], "val"),
        (["data.rot=x", "--weights", "{root}/plain.safetensors"], "did you mean data.root"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    root: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [argument.format(root=root) for argument in arguments]

    assert main([str(root / "config.yaml"), *given]) == 2

    error = capsys.readouterr().err
    assert error.startswith("test.py: ")
    assert message in error


def test_zero_frames_are_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(root / "config.yaml"), "--weights", "w", "--frames", "0"])

    assert "is not an integer of 1 or more" in capsys.readouterr().err
