"""``ffn test``: tables, options and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from tables import read_csv as read

import ffn
from ffn.cli import main
from ffn.cli.arguments import names_of
from ffn.core import convert
from ffn.data import Preprocessing, read_classes
from ffn.datasets.synthetic import generate
from ffn.evaluation import load_predictions, load_table
from ffn.zoo import create_model, save_weights

ROOT = Path(__file__).parents[2]
# The configuration of all tests in this file: clips of 32 pixels from generated videos.
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
    """Return a folder with videos (one broken), a config, and weights of two networks."""
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
    other = create_model("tsm_tiny", num_classes=len(classes))
    save_weights(other, root / "other.safetensors", meta | {"config": {"task": {"frames": [4]}}})
    save_weights(other, root / "reversed.safetensors", meta | {"classes": classes[::-1]})
    return root


def test_networks_are_tested_at_the_given_frames(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = [str(root / f"{name}.safetensors") for name in ("flexible", "plain")]
    arguments = ["--frames", "5", "2", "--no-latency", "--save-predictions"]
    arguments += ["data.test_protocol=1x3", "--protocol", "2x1"]  # the option wins

    status = main(["test", str(root / "config.yaml"), "--weights", *weights, *arguments])

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
    assert flexible.protocol == "2x1"
    screen = capsys.readouterr().out
    assert str(root / "run" / "test" / "results.png") in screen
    assert "1 of 12 videos could not be decoded" in screen


def test_networks_are_named_by_run_and_file() -> None:
    for weights, names in (
        ("a/run/best.pt a/run/last.pt", "run/best run/last"),
        ("a/run/last.pt b/run/last.pt b/x/last.pt", "a/run/last b/run/last b/x/last"),
        ("zoo.name a/zoo.name.safetensors", "zoo.name a/zoo.name"),
    ):
        assert list(names_of(weights.split()).values()) == names.split()


def test_what_cannot_be_tested_is_refused_before_the_first_test(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = yaml.safe_load((root / "plain.yaml").read_text())
    unnamed = {"name": "unnamed", "num_classes": 10, "classes": None}
    network = create_model("tsm_tiny", num_classes=10)
    save_weights(network, root / "unnamed.safetensors", record | unnamed)
    colors = {"name": "colors", "classes": [f"color {i}" for i in range(10)]}
    save_weights(network, root / "colors.safetensors", record | unnamed | colors)
    for names, more, named in (
        ("plain", "--ensemble", "ensemble"),
        ("plain reversed", "--ensemble", "different classes"),
        ("colors", "", "colors.safetensors, tested with its own classes"),
        ("plain missing", "", "missing.safetensors"),
        ("plain plain", "", "twice"),
        ("unnamed", "", "12"),  # classes of the data set
        ("plain", "data.rot=x", "data.root"),
        ("plain", "--protocol 2x2", "2x2"),
    ):
        weights = [str(root / f"{name}.safetensors") for name in names.split()]
        given = ["--weights", *weights, *more.split(), "--output", str(tmp_path)]
        assert main(["test", str(root / "config.yaml"), *given]) == 2
        error = capsys.readouterr().err
        assert error.startswith("ffn test")
        assert named in error
        assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_details_agree_with_the_table(root: Path, tmp_path: Path) -> None:
    """Of two networks and their ensemble."""
    weights = [str(root / f"{name}.safetensors") for name in ("plain", "other")]
    options = ["--ensemble", "--details", "--save-predictions", "--frames", "3", "5"]
    given = [str(root / "config.yaml"), "--weights", *weights, *options, "--no-latency"]
    assert main(["test", *given, "--output", str(tmp_path)]) == 0
    for network in load_table(tmp_path / "results.json"):
        start = f"{tmp_path}/{network.name}"
        answers = read(Path(f"{start}.predictions.csv"))
        classes = read(Path(f"{start}.classes.csv"))
        matrices = read(Path(f"{start}.confusion.csv"))
        for row in network.rows:
            (found,) = [[r for r in answers if int(r["frames"]) == row.frames]]
            assert len(found) == row.videos == 12
            right = sum(r["correct"] == "True" for r in found)
            assert row.score == pytest.approx(100 * right / 12)
            per_class = [r for r in classes if int(r["frames"]) == row.frames]
            means = [float(r["top1"]) for r in per_class]
            assert row.metrics["mean_class"] == pytest.approx(sum(means) / len(means))
            assert sum(int(r["failed"]) for r in per_class) == row.failed == 1
            matrix = [r for r in matrices if int(r["frames"]) == row.frames]
            assert sum(int(r[r["class"]]) for r in matrix) == right
        assert Path(f"{start}.confusion.png").read_bytes()[:4] == b"\x89PNG"
    assert main(["test", *given, "--output", str(tmp_path)]) == 2


def test_frames_can_be_shuffled(root: Path, tmp_path: Path) -> None:
    given = [str(root / "config.yaml"), "--weights", str(root / "plain.safetensors")]
    given += ["--frames", "1", "6", "--no-latency", "--save-predictions", "--output"]

    assert main(["test", *given, str(tmp_path / "a")]) == 0
    assert main(["test", *given, str(tmp_path / "b"), "--shuffle-frames"]) == 0

    ordered = load_predictions(tmp_path / "a/plain.predictions.safetensors")
    shuffled = load_predictions(tmp_path / "b/shuffled_plain.predictions.safetensors")
    one, other = ([kept.logits[t].nan_to_num() for t in (1, 6)] for kept in (ordered, shuffled))
    assert torch.equal(one[0], other[0])
    assert not torch.allclose(one[1], other[1], atol=1e-4)


@pytest.mark.slow
def test_counts_between_two_are_interpolated_if_wanted(root: Path, tmp_path: Path) -> None:
    """The record of the weights decides, unless an option does."""
    model = ffn.load(root / "flexible.safetensors")
    record = yaml.safe_load((root / "flexible.yaml").read_text())
    save_weights(model, tmp_path / "own.safetensors", record | {"name": "own", "interpolate": True})
    for number, (weights, option, subnets, name) in enumerate(
        (
            (root / "flexible.safetensors", ["--interpolate"], [2, 3], "interpolated/flexible"),
            (tmp_path / "own.safetensors", [], [2, 3], "own"),
            (tmp_path / "own.safetensors", ["--no-interpolate"], [2, 4], "nearest/own"),
        )
    ):
        output = ["--no-latency", "--output", str(tmp_path / f"{number}")]
        given = [str(root / "config.yaml"), "--weights", str(weights), "--frames", "2", "3"]
        assert main(["test", *given, *option, *output]) == 0
        (network,) = load_table(tmp_path / f"{number}/results.json")
        assert ([row.subnet for row in network.rows], network.name) == (subnets, name)
