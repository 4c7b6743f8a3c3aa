"""Metrics of several labels per video, against scikit-learn and by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from evaluation_toys import CLASSES, MultiLabelVideos, flexible, loader, plain
from rich.console import Console
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score
from tables import read_csv

from ffn.data import Normalize, Protocol
from ffn.evaluation import (
    ensemble,
    evaluate,
    load_predictions,
    load_table,
    multi_label_accuracy,
    print_table,
    save_details,
    save_prediction_table,
    save_predictions,
    save_table,
    sweep,
)
from ffn.evaluation.multi_label import NOT_FOUND, class_measures

NAMES = [f"class {i}" for i in range(CLASSES)]


def metrics_of(logits: np.ndarray, label: np.ndarray) -> dict[str, float]:
    """In percent, by scikit-learn."""
    occurs = label.any(0)
    return {
        "map": 100 * average_precision_score(label[:, occurs], logits[:, occurs], average="macro"),
        "f1": 100 * f1_score(label, logits >= 0, average="micro"),
    }


@pytest.mark.parametrize("ties", [False, True])
def test_metrics_are_those_of_sklearn(ties: bool) -> None:
    random = np.random.default_rng(0)
    logits, label = random.normal(size=(60, 7)), random.uniform(size=(60, 7)) < 0.3
    label[:, 3] = False  # a class without videos
    label[:, 4] = True
    logits = logits.round() if ties else logits

    found = multi_label_accuracy(torch.tensor(logits), torch.tensor(label).float())

    assert found == pytest.approx(metrics_of(logits, label), rel=1e-12)
    each = class_measures(torch.tensor(logits), torch.tensor(label))
    for k in (0, 1, 2, 4, 5, 6):
        expected = [
            average_precision_score(label[:, k], logits[:, k]),
            *(score(label[:, k], logits[:, k] >= 0) for score in (precision_score, recall_score)),
            f1_score(label[:, k], logits[:, k] >= 0),
        ]
        assert [float(values[k]) for values in each.values()] == pytest.approx(expected, rel=1e-12)
    assert each["ap"][3].isnan()


def test_unreadable_videos_are_not_found() -> None:
    """The readable video with the label is first: P = 1, R = 1/2; the other one is never found."""
    scores = torch.tensor([[1.0], [0.5], [NOT_FOUND], [NOT_FOUND]])
    label = torch.tensor([[1.0], [0.0], [1.0], [0.0]])
    found = multi_label_accuracy(scores, label)
    assert found == pytest.approx({"map": 50, "f1": 100 * 2 * 1 / (2 * 1 + 1 + 1)})


def kept(toys: MultiLabelVideos) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    result = sweep(flexible(), loader(toys), latency=False, keep_logits=True).predictions
    return result.label.numpy(), {t: x.numpy() for t, x in result.logits.items()}


def test_sweep_of_several_labels(tmp_path: Path) -> None:
    toys = MultiLabelVideos(9)
    result = sweep(flexible(), loader(toys), name="net", latency=False, keep_logits=True)

    label, logits = kept(toys)
    assert label.shape == (9, CLASSES)
    for row in result.rows:
        assert row.metrics == pytest.approx(metrics_of(logits[row.frames], label), rel=1e-9)
    measures, _ = evaluate(flexible(), loader(toys))
    assert measures == {row.frames: {**row.metrics, "failed": 0} for row in result.rows}

    save_table([result], tmp_path)
    (again,) = load_table(tmp_path / "results.json")
    assert again.rows == result.rows
    (first, *_) = read_csv(tmp_path / "results.csv")
    assert float(first["map"]) == result.rows[0].metrics["map"]
    assert "top1" not in first
    console = Console(record=True, width=120)
    print_table([result, result], console)
    text = console.export_text()
    assert "mAP" in text
    assert "mean average precision (%)" in text
    assert "top-1" not in text


def test_files_of_predictions_and_details(tmp_path: Path) -> None:
    toys = MultiLabelVideos(9, failed=(2,))
    result = sweep(flexible(), loader(toys), name="net", latency=False, keep_logits=True)

    loaded = load_predictions(save_predictions(result, tmp_path / "p.safetensors"))
    assert torch.equal(loaded.label, result.predictions.label)
    rows = read_csv(save_prediction_table(loaded, NAMES, tmp_path / "p.csv"))
    assert len(rows) == 9 * 3
    for number, row in enumerate(rows):
        video, logits = number // 3, loaded.logits[int(row["frames"])][number // 3]
        assert row["labels"] == "|".join(
            name for name, here in zip(NAMES, loaded.label[video], strict=True) if here
        )
        above = [] if video == 2 else [i for i in range(CLASSES) if logits[i] >= 0]
        assert row["predictions"] == "|".join(NAMES[i] for i in above)
        shares = [float(x) for x in row["probabilities"].split("|") if x]
        assert shares == pytest.approx([float(logits[i].sigmoid()) for i in above], rel=1e-5)

    with pytest.raises(ValueError, match="several labels and no single answer"):
        loaded.answers(2)
    (file,) = save_details(result, NAMES, tmp_path)
    rows = read_csv(file)
    assert file.name == "net.classes.csv"
    assert len(rows) == 3 * CLASSES
    for row, sweep_row in zip(
        [rows[:CLASSES], rows[CLASSES : 2 * CLASSES]], result.rows, strict=False
    ):
        each = [float(one["ap"]) for one in row if one["ap"]]
        assert sum(each) / len(each) == pytest.approx(sweep_row.score)
        assert row[-1]["ap"] == ""  # no video
        assert sum(int(one["failed"]) for one in row) == int(loaded.label[2].sum())


def test_several_views_and_networks_are_averaged_as_probabilities() -> None:
    toys = MultiLabelVideos(5, protocol=Protocol(2, 3))
    logits = kept(toys)[1][4]
    inside = [toys[i]["clips"][4] for i in range(5)]
    model = flexible().eval()
    for video, clips in enumerate(inside):
        with torch.no_grad():
            expected = model(Normalize(toys.preprocessing)(clips)).double().sigmoid().mean(0)
        found = torch.tensor(logits[video]).double().sigmoid()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)

    options = {"latency": False, "keep_logits": True}
    members = [
        sweep(model, loader(MultiLabelVideos(7)), **options) for model in (flexible(), plain(3))
    ]
    both = ensemble(members)
    mean = sum(m.predictions.logits[4].double().sigmoid() for m in members) / 2
    torch.testing.assert_close(
        both.predictions.logits[4].double().sigmoid(), mean, rtol=1e-5, atol=1e-7
    )
    assert both.rows[1].score == pytest.approx(
        metrics_of(mean.numpy(), both.predictions.label.numpy())["map"]
    )
