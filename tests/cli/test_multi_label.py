"""Several labels per video through the commands: train, test, predict, publish, export, tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from multi_label_videos import CLASSES, write_multi_label_videos
from sklearn.metrics import average_precision_score
from tables import read_csv

import ffn
from ffn.cli import main
from ffn.evaluation import load_predictions, load_table
from ffn.zoo import load_with_record

pytestmark = pytest.mark.slow
CONFIG = """\
model: {{name: tsm_tiny, dropout: 0}}
task: {{frames: [4, 8]}}
data:
  root: {root}
  labels: multi
  classes: classes.txt
  test_frames: [4, 6, 8]
  crop: 24
  resize: 28
  scales: [1.0]
  workers: 0
  cache_gib: 0.1
train: {{epochs: 15, validate_epochs: 5, batch_size: 8}}
optim:
  {{name: adamw, groups: standard, lr: 3.0e-3, schedule: cosine, weight_decay: 0.05}}
log: {{output: {root}/run, interval: 50, wandb: disabled}}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with videos, a config, and a finished run."""
    root = write_multi_label_videos(tmp_path_factory.mktemp("several"))
    (root / "c.yaml").write_text(CONFIG.format(root=root))
    assert main(["train", str(root / "c.yaml")]) == 0
    return root


@pytest.fixture(scope="module")
def best(root: Path) -> str:
    return str(root / "run" / "best.pt")


@pytest.fixture(scope="module")
def tested(root: Path, best: str) -> Path:
    given = [str(root / "c.yaml"), "--weights", best, "--no-latency"]
    assert main(["test", *given, "--details", "--save-predictions"]) == 0
    return root / "run/test"


def labels_of_list(root: Path) -> list[list[bool]]:
    rows = read_csv(root / "val.csv")
    return [[c in row["labels"].split("|") for c in CLASSES] for row in rows]


def test_a_network_learns_and_is_tested(root: Path, best: str, tested: Path, capsys) -> None:
    (found,) = load_table(tested / "results.json")
    assert [(row.frames, row.subnet) for row in found.rows] == [(4, 4), (6, 8), (8, 8)]
    kept = load_predictions(tested / "run_best.predictions.safetensors")
    label = torch.tensor(labels_of_list(root))
    assert torch.equal(kept.label > 0, label)
    for row in found.rows:
        expected = 100 * average_precision_score(label, kept.logits[row.frames], average="macro")
        assert row.score == pytest.approx(expected)
        assert row.score > 75  # chance is 50
    classes = read_csv(tested / "run_best.classes.csv")
    ap = {row["class"]: float(row["ap"]) for row in classes if row["frames"] == "8"}
    assert ap["pulse"] > 80  # a motion
    single = [str(root / "c.yaml"), "data.labels=single", "--weights", best, "--overwrite"]
    assert main(["test", *single]) == 2
    assert "data.labels is single" in capsys.readouterr().err


def test_predictions_are_independent_probabilities(
    root: Path, best: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(root / "val_7.mp4"), "--weights", best, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["labels"]
    predictor = ffn.Predictor(best, runtime="unfused")
    clip = predictor.reader().read(str(root / "val_7.mp4"))
    expected = predictor.predict([clip])[0]
    assert expected.multi_label
    assert {one["label"] for one in found} == {*CLASSES}
    for one in found:
        probability = expected.probabilities[CLASSES.index(one["label"])].item()
        assert one["probability"] == pytest.approx(probability, abs=1e-3)


def test_publish_and_export_keep_the_kind(best: str, tested: Path, tmp_path: Path) -> None:
    results = str(tested / "results.json")
    name = "tsm_tiny.several_f4_8"
    assert main(["publish", best, name, "--output", str(tmp_path), "--results", results]) == 0
    record = load_with_record(tmp_path / f"{name}.safetensors")[1]
    assert record.multi_label
    assert record.metrics[8].keys() == {"map", "f1"}

    output = tmp_path / "net.pt2"
    weights = str(tmp_path / f"{name}.safetensors")
    arguments = ["--weights", weights, "--frames", "4", "--output", str(output)]
    assert main(["export", *arguments, "--probabilities"]) == 0
    described = json.loads(Path(f"{output}.json").read_text())
    assert described["multi_label"] is True
    clip = torch.randn(2, 3, 4, 24, 24)
    with torch.no_grad():
        expected = ffn.load(weights)(clip).sigmoid()
    exported = torch.export.load(output).module()(clip)
    torch.testing.assert_close(exported, expected, rtol=1e-4, atol=1e-5)


def test_checked_lists_and_packed_videos(root: Path, best: str, tmp_path: Path) -> None:
    output = tmp_path / "checked"
    given = [str(root / "val.csv"), "--workers", "1", "--output", str(output)]
    assert main(["check_data", *given, "--classes", str(root / "classes.txt")]) == 0
    checked, listed = read_csv(output / "index.csv"), read_csv(root / "val.csv")
    assert [(r["path"], r["labels"]) for r in checked] == [(r["path"], r["labels"]) for r in listed]

    config = str(root / "c.yaml")
    stored = ["data.store=store", "data.format=store"]
    assert main(["pack", config, "data.store=store", "--quality", "100"]) == 0
    given = [config, "--weights", best, "--no-latency", "--save-predictions"]
    assert main(["test", *given, *stored, "--output", str(tmp_path / "stored")]) == 0
    kept = load_predictions(tmp_path / "stored/run_best.predictions.safetensors")
    assert (kept.label > 0).tolist() == labels_of_list(root)
