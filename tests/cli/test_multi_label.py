"""Several labels per video through the commands: train, test, predict, publish, export, tools."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import av
import pytest
import torch
from multi_label_videos import CLASSES, write_multi_label_videos
from sklearn.metrics import average_precision_score

import ffn
from ffn.cli import main
from ffn.data import EvalTransform, Normalize, decode, segment_center
from ffn.evaluation import load_predictions, load_table
from ffn.zoo import load_with_record

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


def labels_of_list(root: Path) -> list[list[bool]]:
    with (root / "val.csv").open(newline="") as file:
        return [[c in row["labels"].split("|") for c in CLASSES] for row in csv.DictReader(file)]


def test_a_network_learns_and_is_tested(root: Path, best: str, tmp_path: Path) -> None:
    given = [str(root / "c.yaml"), "--weights", best, "--no-latency", "--output", str(tmp_path)]

    assert main(["test", *given, "--details", "--save-predictions"]) == 0

    (found,) = load_table(tmp_path / "results.json")
    assert [(row.frames, row.subnet) for row in found.rows] == [(4, 4), (6, 8), (8, 8)]
    kept = load_predictions(tmp_path / "run_best.predictions.safetensors")
    label = torch.tensor(labels_of_list(root))
    assert torch.equal(kept.label > 0, label)
    for row in found.rows:
        expected = 100 * average_precision_score(label, kept.logits[row.frames], average="macro")
        assert row.map == pytest.approx(expected)
        assert row.map > 75  # chance is 50
    with (tmp_path / "run_best.classes.csv").open(newline="") as file:
        ap = {r["class"]: float(r["ap"]) for r in csv.DictReader(file) if r["frames"] == "8"}
    assert ap["pulse"] > 80  # a motion
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("results.csv", "results.json", "results.png", "run_best.classes.csv"),
        *("run_best.predictions.csv", "run_best.predictions.safetensors"),
    ]


def test_validation_chose_by_mean_average_precision(root: Path, best: str, tmp_path: Path) -> None:
    entries = [json.loads(line) for line in (root / "run" / "log.jsonl").read_text().splitlines()]
    scores = [e["val/mean"] for e in entries if "val/mean" in e]
    _, record = load_with_record(best)
    found = [record.metrics[t]["map"] for t in (4, 8)]
    assert len(scores) == 3
    assert sum(found) / 2 == pytest.approx(max(scores))


def test_predictions_are_independent_probabilities(
    root: Path, best: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ffn.Predictor(best, precision="fp32", fuse=False)(root / "val_0.mp4", frames=8)
    model = ffn.load(best)
    preprocessing = ffn.Predictor(best, precision="fp32").preprocessing
    with av.open(str(root / "val_0.mp4")) as video:
        number = sum(1 for _ in video.decode(video=0))
    frames = EvalTransform(preprocessing)(decode(root / "val_0.mp4", segment_center(number, 8)))
    clip = Normalize(preprocessing)(frames.transpose(0, 1)[None])
    with torch.no_grad():
        expected = model(clip)[0].sigmoid()
    torch.testing.assert_close(found.probabilities, expected, rtol=1e-4, atol=1e-5)
    assert found.multi_label

    assert main(["predict", str(root / "val_7.mp4"), "--weights", best]) == 0
    shown = capsys.readouterr().out
    assert "; several labels, independent probabilities" in shown
    assert all(name in shown for name in CLASSES)


@pytest.mark.slow
def test_publish_and_export_keep_the_kind(root: Path, best: str, tmp_path: Path) -> None:
    assert main(["test", str(root / "c.yaml"), "--weights", best, "--no-latency"]) == 0
    results = str(root / "run/test/results.json")
    name = "tsm_tiny.several_f4_8"
    assert main(["publish", best, name, "--output", str(tmp_path), "--results", results]) == 0
    record = load_with_record(tmp_path / f"{name}.safetensors")[1]
    assert record.multi_label
    assert record.metrics[8].keys() == {"map", "f1"}
    assert "multi_label: true" in (tmp_path / f"{name}.yaml").read_text()

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
    assert ffn.fuse(ffn.load(weights), 4).record.multi_label


def test_weights_and_lists_of_the_other_kind_are_refused(
    root: Path, best: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(root / "c.yaml")
    assert main(["train", config, "data.labels=single", f"log.output={tmp_path}"]) == 2
    assert "labels" in capsys.readouterr().err
    given = [config, "data.labels=single", "--weights", best, "--output", str(tmp_path / "x")]
    assert main(["test", *given]) == 2
    assert "data.labels is single" in capsys.readouterr().err


def test_checked_lists_packed_and_drawn_videos(root: Path, best: str, tmp_path: Path) -> None:
    output = tmp_path / "checked"
    given = [str(root / "val.csv"), "--workers", "1", "--output", str(output)]
    assert main(["check_data", *given, "--classes", str(root / "classes.txt")]) == 0
    with (output / "index.csv").open(newline="") as file:
        checked = [(row["path"], row["labels"]) for row in csv.DictReader(file)]
    with (root / "val.csv").open(newline="") as file:
        assert checked == [(row["path"], row["labels"]) for row in csv.DictReader(file)]

    config = str(root / "c.yaml")
    stored = ["data.store=store", "data.format=store"]
    assert main(["pack", config, "data.store=store", "--quality", "100"]) == 0
    given = [config, "--weights", best, "--no-latency", "--save-predictions"]
    assert main(["test", *given, *stored, "--output", str(tmp_path / "stored")]) == 0
    kept = load_predictions(tmp_path / "stored/run_best.predictions.safetensors")
    assert (kept.label > 0).tolist() == labels_of_list(root)

    picture = tmp_path / "samples.png"
    more = ["train.mixup=0.5", "train.label_smoothing=0.1", "--videos", "4"]
    assert main(["browse", config, "--output", str(picture)]) == 0
    assert main(["browse", config, "--output", str(picture), "--overwrite", *more]) == 0
    assert picture.stat().st_size > 1000
