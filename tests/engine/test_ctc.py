"""The task of texts: what it refuses before training, its losses, and its commands."""

from __future__ import annotations

import json
from pathlib import Path

import jiwer
import numpy as np
import pytest
import torch
from engine_toys import CPU
from tables import read_csv

import ffn
from ffn.cli import main
from ffn.data import read_splits
from ffn.datasets.spelling import WORDS, draw, generate
from ffn.engine.build import build_training
from ffn.engine.config import load_config
from ffn.evaluation import load_predictions, load_table
from ffn.labels import SingleLabel
from ffn.texts import Characters, beam_search
from ffn.zoo import load_with_record

CONFIG = str(Path(__file__).parents[2] / "configs/quickstart/spelling_ctc.yaml")
SMALL = ["task.frames=[12,24]", "data.test_frames=[12,17,24]", "data.crop=16", "data.resize=16"]
SMALL += ["task.hidden=16", "train.epochs=2", "train.batch_size=4"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with generated videos."""
    folder = tmp_path_factory.mktemp("spelling") / "data"
    return generate(folder, train=8, val=5, frames=24, size=16)


def options(root: Path, *more: str) -> list[str]:
    return [*SMALL, f"data.root={root}", f"log.output={root}/run", *more]


def test_generated_texts(root: Path) -> None:
    texts = [row["text"] for name in ("train", "val") for row in read_csv(root / f"{name}.csv")]
    assert len({*texts}) == len(texts) == 13
    assert {word for text in texts for word in text.split()} <= {*WORDS}
    one, two = (draw(24, 16, "a m", "train", np.random.default_rng(n)) for n in (0, 1))
    assert one.shape == (24, 16, 16, 3)
    assert not np.array_equal(one, two)
    assert (one[7] < 60).sum() > 3 * (one[17] < 60).sum()  # open for an a, closed for an m


@pytest.mark.parametrize(
    ("text", "more", "parts"),
    [
        ("mama z", ["data.classes=known.txt"], ["t.csv:3", "'z'", "data.classes"]),
        ("m" * 13, [], ["t.csv:3", "needs 25 logits", "12 frames give 24", "task.upsample to 3"]),
        ('""', [], ["t.csv:3", "the text is empty"]),
        (None, [], ["t.csv:2", "no column text"]),
        ("mama", ["data.labels=single"], ["data.labels", "'single'", "characters, words"]),
        ("mama", ["data.labels=letters"], ["data.labels", "'letters'", "characters, words"]),
        ("mama", ["train.mixup=0.2"], ["mixup", "classes"]),
        ("mama", ["train.compile=true"], ["GRUs", "task.head=conv"]),
    ],
)
def test_refused_before_training(
    root: Path, capsys: pytest.CaptureFixture[str], text: str | None, more: list[str], parts: list
) -> None:
    paths = [row["path"] for row in read_csv(root / "train.csv")][:5]
    (root / "known.txt").write_text("<space>\na\ne\nl\nm\no\ns\n")
    rows = [f"{path},{text if i == 1 else 'alas loom e'}" for i, path in enumerate(paths)]
    header = f"path,{'label' if text is None else 'text'}"
    (root / "t.csv").write_text("\n".join([header, *rows]) + "\n")

    given = options(root, "data.train=t.csv", f"log.output={root}/refused", *more)
    assert main(["train", CONFIG, *given]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert all(part in line for part in parts), line


def test_every_view_learns_the_text(root: Path) -> None:
    training = build_training(load_config(CONFIG, options(root)), CPU)
    task, splits = training.step.task, training.splits
    batch = next(iter(training.loader))
    texts = [splits.labels.text(row) for row in batch["label"].tolist()]
    assert {*texts} <= {row.others["text"] for row in splits.rows[0]}
    clips = {t: training.step.normalize(clip) for t, clip in batch["clips"].items()}

    outputs = task({"clips": clips, "label": batch["label"]})

    logits = [outputs[f"logits/{t}"] for t in (12, 24)]
    assert [tuple(x.shape) for x in logits] == [(4, 24, 8), (4, 48, 8)]
    losses = [Characters.loss(x, batch["label"]) for x in logits]
    torch.testing.assert_close(outputs["loss"].detach(), sum(losses))
    outputs["loss"].backward()
    assert not [n for n, p in task.model.named_parameters() if p.grad is None]


def test_classes_and_texts_in_one_list(tmp_path: Path) -> None:
    (tmp_path / "both.csv").write_text("path,label,text\na.mp4,x,a word\nb.mp4,y,word\n")
    given = {"train": "both.csv", "val": "both.csv"}
    found = read_splits(tmp_path, **given)
    assert (found.classes, found.labels) == (["x", "y"], SingleLabel)
    found = read_splits(tmp_path, **given, labels="words")
    assert (found.classes, found.train[0].label) == (["a", "word"], (0, 1))
    (tmp_path / "text.csv").write_text("path,text\na.mp4,a word\n")
    with pytest.raises(ValueError, match=r"text.csv has a text per video. Set data.labels=char"):
        read_splits(tmp_path, train="text.csv", val="text.csv")


@pytest.mark.slow
def test_commands(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Train, test at any count, publish, predict and export: the same logits everywhere."""
    assert main(["train", CONFIG, *options(root)]) == 0
    best, video = str(root / "run/best.pt"), str(root / "videos/val_0002.mp4")
    given = [*options(root), "--weights", best, "--no-latency", "--save-predictions"]
    assert main(["test", CONFIG, *given]) == 0
    results = root / "run/test/results.json"
    (sweep,) = load_table(results)
    assert [(row.frames, row.subnet) for row in sweep.rows] == [(12, 12), (17, 12), (24, 24)]
    answers = read_csv(root / "run/test/run_best.predictions.csv")
    for row in sweep.rows:
        own = [one for one in answers if one["frames"] == str(row.frames)]
        texts, found = ([one[k] for one in own] for k in ("text", "prediction"))
        assert row.metrics["wer"] == pytest.approx(100 * jiwer.wer(texts, found))
        assert row.metrics["cer"] == pytest.approx(100 * jiwer.cer(texts, found))

    assert main(["test", CONFIG, *given, "--beams", "20", f"--output={root}/beam"]) == 0
    (beam,) = load_table(root / "beam/results.json")
    found = [r["prediction"] for r in read_csv(root / "beam/beam_run_best.predictions.csv")]
    kept = load_predictions(root / "run/test/run_best.predictions.safetensors").logits
    tokens = [beam_search(one)[0] for logits in kept.values() for one in logits]
    assert beam.name == f"beam/{sweep.name}"
    names = load_with_record(best)[1].classes
    assert found == [Characters(names).text(one) for one in tokens]

    name, weights = "lipnet_tiny.spelling_f12_24", f"{root}/lipnet_tiny.spelling_f12_24.safetensors"
    publish = ["publish", best, name, "--output", str(root), "--results", str(results)]
    assert main(publish) == 0
    capsys.readouterr()
    assert main(["predict", video, "--weights", weights, "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    predictor = ffn.Predictor(weights, runtime="unfused", precision="fp32")
    prediction = predictor(video)
    assert predictor.record.metrics[24].keys() == {"wer", "cer"}
    assert shown["labels"][0]["label"] == prediction.text
    assert [word["text"] for word in shown["words"]] == prediction.text.split()
    times = [(word["start"], word["end"]) for word in shown["words"]]
    assert all(0 <= start <= end < 24 / 20 for start, end in times)
    torch.testing.assert_close(kept[24][2].softmax(-1), prediction.probabilities)

    assert (
        main(["export", "--weights", weights, "--frames", "24", "--output", f"{root}/n.pt2"]) == 0
    )
    clip, network = torch.randn(3, 3, 24, 16, 16), torch.export.load(root / "n.pt2").module()
    torch.testing.assert_close(network(clip), ffn.load(weights)(clip), rtol=1e-4, atol=1e-4)
    for call in (predictor.heat_map, lambda path: predictor.windows(path, 1.0)):
        with pytest.raises(ValueError, match="needs classes"):
            call(video)
