"""The task of texts: what it refuses before training, its losses, and its commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_toys import CPU
from tables import read_csv

import ffn
from ffn.cli import main
from ffn.datasets.spelling import WORDS, draw, generate
from ffn.engine.build import build_training
from ffn.engine.config import load_config
from ffn.evaluation import load_predictions, load_table
from ffn.labels import SingleLabel
from ffn.texts import Characters
from ffn.zoo import load_with_record

CONFIG = """\
model: {{name: lipnet_tiny, dropout: 0}}
task: {{name: ctc, frames: [12, 24], hidden: 16, upsample: 2}}
data:
  root: {root}
  labels: characters
  test_frames: [12, 17, 24]
  crop: 16
  resize: 16
  scales: [1.0]
  workers: 0
train: {{epochs: 2, batch_size: 4}}
optim: {{name: adamw, groups: standard, lr: 3.0e-3}}
log: {{output: {root}/run, interval: 1, wandb: disabled}}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with generated videos, and a config."""
    root = generate(
        tmp_path_factory.mktemp("spelling") / "data", train=8, val=5, frames=24, size=16
    )
    (root / "c.yaml").write_text(CONFIG.format(root=root))
    return root


def message(root: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """The one line that a training with these options prints before it ends."""
    assert main(["train", str(root / "c.yaml"), f"log.output={root}/refused", *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_generated_texts(root: Path) -> None:
    rows = [row for name in ("train", "val") for row in read_csv(root / f"{name}.csv")]
    texts = [row["text"] for row in rows]
    assert len({*texts}) == len(texts) == 13
    assert {word for text in texts for word in text.split()} <= {*WORDS}
    one, two = (draw(24, 16, "a m", "train", np.random.default_rng(n)) for n in (0, 1))
    assert one.shape == (24, 16, 16, 3)
    assert not np.array_equal(one, two)
    assert (one[7] < 60).sum() > 3 * (one[17] < 60).sum()  # open for an a, closed for an m


@pytest.mark.parametrize(
    ("text", "options", "parts"),
    [
        ("mama z", ["data.classes=known.txt"], ["t.csv:3", "'z'", "data.classes"]),
        ("m" * 13, [], ["t.csv:3", "needs 25 logits", "12 frames give 24", "task.upsample to 3"]),
        ('""', [], ["t.csv:3", "the text is empty"]),
        (None, [], ["t.csv:2", "no column text"]),
        ("mama", ["task.name=flexible", "model.name=tsm_tiny"], ["data.labels", "task.name=ctc"]),
        ("mama", ["data.labels=single"], ["data.labels", "'single'", "characters, words"]),
        ("mama", ["data.labels=letters"], ["data.labels", "'letters'", "characters, words"]),
        ("mama", ["train.mixup=0.2"], ["mixup", "classes"]),
    ],
)
def test_refused_before_training(
    root: Path,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    options: list[str],
    parts: list,
) -> None:
    paths = [row["path"] for row in read_csv(root / "train.csv")][:5]
    (root / "known.txt").write_text("<space>\na\ne\nl\nm\no\ns\n")
    column = "label" if text is None else "text"
    rows = [f"{path},{text if i == 1 else 'alas loom e'}" for i, path in enumerate(paths)]
    (root / "t.csv").write_text("\n".join([f"path,{column}", *rows]) + "\n")

    shown = message(root, capsys, "data.train=t.csv", *options)

    assert all(part in shown for part in parts), shown


def test_every_view_learns_the_text(root: Path) -> None:
    training = build_training(load_config(root / "c.yaml"), CPU)
    task, splits = training.step.task, training.splits
    batch = next(iter(training.loader))
    texts = [splits.labels.text(row) for row in batch["label"].tolist()]
    known = {row.path: row.others["text"] for row in splits.rows[0]}
    assert {*texts} <= {*known.values()}
    clips = {t: training.step.normalize(clip) for t, clip in batch["clips"].items()}

    outputs = task({"clips": clips, "label": batch["label"]})

    logits = {t: outputs[f"logits/{t}"] for t in (12, 24)}
    assert [tuple(x.shape) for x in logits.values()] == [(4, 24, 8), (4, 48, 8)]
    losses = [Characters.loss(x, batch["label"]) for x in logits.values()]
    torch.testing.assert_close(outputs["loss"].detach(), sum(losses))
    outputs["loss"].backward()
    assert not [n for n, p in task.model.named_parameters() if p.grad is None]


def test_classes_and_texts_in_one_list(root: Path) -> None:
    (root / "both.csv").write_text("path,label,text\na.mp4,x,a word\nb.mp4,y,word\n")
    options = {"train": "both.csv", "val": "both.csv"}
    found = ffn.data.read_splits(root, **options)
    assert (found.classes, found.labels) == (["x", "y"], SingleLabel)
    found = ffn.data.read_splits(root, **options, labels="words")
    assert (found.classes, found.train[0].label) == (["a", "word"], (0, 1))
    (root / "text.csv").write_text("path,text\na.mp4,a word\n")
    with pytest.raises(ValueError, match=r"text.csv has a text per video. Set data.labels=char"):
        ffn.data.read_splits(root, train="text.csv", val="text.csv")


@pytest.mark.slow
def test_commands(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Train, test at any count, predict, publish and export; the same logits everywhere."""
    assert main(["train", str(root / "c.yaml")]) == 0
    best, video = str(root / "run/best.pt"), str(root / "videos/val_0002.mp4")
    given = [str(root / "c.yaml"), "--weights", best, "--no-latency", "--save-predictions"]
    assert main(["test", *given]) == 0
    results = root / "run/test/results.json"
    (sweep,) = load_table(results)
    assert [(row.frames, row.subnet) for row in sweep.rows] == [(12, 12), (17, 12), (24, 24)]
    answers = read_csv(root / "run/test/run_best.predictions.csv")
    import jiwer

    for row in sweep.rows:
        own = [one for one in answers if one["frames"] == str(row.frames)]
        texts, found = ([one[k] for one in own] for k in ("text", "prediction"))
        assert row.metrics["wer"] == pytest.approx(100 * jiwer.wer(texts, found))
        assert row.metrics["cer"] == pytest.approx(100 * jiwer.cer(texts, found))

    name = "lipnet_tiny.spelling_f12_24"
    publish = ["publish", best, name, "--output", str(root), "--results", str(results)]
    assert main(publish) == 0
    weights = str(root / f"{name}.safetensors")
    record = load_with_record(weights)[1]
    assert (record.labels, record.classes[0]) == ("characters", "<space>")
    assert record.metrics[24].keys() == {"wer", "cer"}
    capsys.readouterr()
    assert main(["predict", video, "--weights", weights, "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    predictor = ffn.Predictor(weights, runtime="unfused", precision="fp32")
    prediction = predictor(video)
    assert shown["labels"][0]["label"] == prediction.text
    assert [word["text"] for word in shown["words"]] == prediction.text.split()
    times = [(word["start"], word["end"]) for word in shown["words"]]
    assert all(0 <= start <= end < 24 / 20 for start, end in times)

    kept = load_predictions(root / "run/test/run_best.predictions.safetensors").logits[24]
    torch.testing.assert_close(kept[2].softmax(-1), prediction.probabilities)
    assert (
        main(["export", "--weights", weights, "--frames", "24", "--output", f"{root}/n.pt2"]) == 0
    )
    clip = torch.randn(3, 3, 24, 16, 16)
    network = torch.export.load(root / "n.pt2").module()
    torch.testing.assert_close(network(clip), ffn.load(weights)(clip), rtol=1e-4, atol=1e-4)
    for call in (predictor.heat_map, lambda path: predictor.windows(path, 1.0)):
        with pytest.raises(ValueError, match="needs classes"):
            call(video)
