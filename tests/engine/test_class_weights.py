"""Class weights: their formula, and the losses against torch's weighted cross-entropy."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engine_toys import (
    CLASSES,
    all_tasks,
    batch,
    build,
    config,
    flexible_task,
    read_log,
    tiny,
    train,
)
from torch import Tensor

from ffn.engine import loop
from ffn.engine.build_data import build_class_weights, read_config_splits
from ffn.engine.class_weights import balanced_weights, class_counts, with_mean_one
from ffn.engine.config import ConfigError
from ffn.engine.mixup import BatchMix
from ffn.engine.tasks import PlainTask, Task
from ffn.engine.tasks import base as tasks

WEIGHTS = torch.tensor([0.4, 1.3, 2.6])
COUNTS = (2, 4, 8)
SMOOTHING = 0.2


@pytest.fixture(scope="module")
def unbalanced(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 videos of the first class, 6 of the second, 3 of the third."""
    folder = tmp_path_factory.mktemp("unbalanced")
    with (videos / "train.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    kept = [row for name, n in zip(CLASSES, (8, 4, 2), strict=True) for row in of(rows, name)[:n]]
    lines = [f"{videos}/{row['path']},{row['label']}" for row in kept]
    (folder / "train.csv").write_text("\n".join(["path,label", *lines]))
    val = (videos / "val.csv").read_text().replace("val_", f"{videos}/val_")
    (folder / "val.csv").write_text(val)
    return folder


def of(rows: list[dict[str, str]], name: str) -> list[dict[str, str]]:
    return [row for row in rows if row["label"] == name]


# --- the weights --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["train.class_weights=balanced"], [14 / 24, 14 / 12, 14 / 6]),  # n / (K n_c)
        # left and right are exchanged in half of the samples: 6 videos of each
        (
            ["train.class_weights=balanced", "data.flip=swap", "data.flip_pairs=[[left,right]]"],
            [14 / 18, 14 / 18, 14 / 6],
        ),
    ],
)
def test_weights_of_a_config(
    unbalanced: Path, tmp_path: Path, options: list[str], expected: list[float]
) -> None:
    given = config(unbalanced, tmp_path, *options)
    found = build_class_weights(given, read_config_splits(given.data))
    assert found.tolist() == pytest.approx(expected)
    assert found.dtype == torch.float32


def test_square_roots_keep_the_mean_over_the_videos(unbalanced: Path, tmp_path: Path) -> None:
    given = config(unbalanced, tmp_path, "train.class_weights=sqrt")
    found = build_class_weights(given, read_config_splits(given.data))
    roots = np.sqrt([14 / 24, 14 / 12, 14 / 6])
    expected = roots * 14 / (roots * [8, 4, 2]).sum()
    assert found.tolist() == pytest.approx(expected)


def test_sklearn_and_classes_without_videos() -> None:
    compute = pytest.importorskip("sklearn.utils.class_weight").compute_class_weight
    labels = [0] * 7 + [1] * 2 + [3]
    weights = balanced_weights(class_counts(labels, 4))
    assert weights[[0, 1, 3]].tolist() == pytest.approx(
        compute("balanced", classes=np.array([0, 1, 3]), y=np.array(labels))
    )
    assert weights[2] == 0
    scaled = with_mean_one(weights, class_counts(labels, 4))
    assert scaled[labels].mean() == pytest.approx(1)


# --- the losses ---------------------------------------------------------------------------------


def weighted(task: Task, weights: Tensor | None = WEIGHTS) -> Task:
    task.class_weights = weights
    return task.eval()


def smoothed(data: dict[str, Any], mixup: float = 0.0) -> dict[str, Any]:
    mix = BatchMix(3, mixup=mixup, smoothing=SMOOTHING, seed=1)
    return mix(data, step=0, micro=0, rank=0)


def kl_each(logits: Tensor, teacher: Tensor) -> np.ndarray:
    """KL(teacher || student) of each video, in float64."""
    p, q = (x.double().softmax(1).numpy() for x in (teacher, logits))
    return (p * np.log(p / q)).sum(1)


@pytest.mark.parametrize("kind", ["plain labels", "smoothed", "mixed"])
@pytest.mark.parametrize("name", all_tasks())
def test_loss_of_every_task(name: str, kind: str) -> None:
    task, data = weighted(all_tasks()[name]), batch(COUNTS, size=5)
    index = data["label"]
    if kind != "plain labels":
        data = smoothed(data, mixup=0.5 if kind == "mixed" else 0.0)
    torch.manual_seed(3)
    outputs = task(data)

    def ce(logits: Tensor) -> float:
        if kind == "mixed":  # the definition, for labels that are probabilities
            rows = data["label"].double() * WEIGHTS.double()
            return -(rows * logits.double().log_softmax(1)).sum(1).mean().item()
        smoothing = SMOOTHING if kind == "smoothed" else 0.0
        options = {"weight": WEIGHTS, "label_smoothing": smoothing}
        mean = F.cross_entropy(logits, index, **options).item()
        return mean * WEIGHTS[index].sum().item() / len(index)  # torch divides by this sum

    if kind == "plain labels":
        factor = WEIGHTS[index]
    else:
        factor = (data["label"] * WEIGHTS).sum(1)

    def small(logits: Tensor) -> float:
        kl = (factor.double().numpy() * kl_each(logits, outputs["logits/8"])).mean()
        return {"flexible": kl, "label": ce(logits), "mixed": (kl + ce(logits)) / 2}[name]

    losses = {key: float(value) for key, value in outputs.items() if key.startswith("loss/")}
    expected = {"loss/ce_8": ce(outputs["logits/8"])}
    if name in ("flexible", "label", "mixed"):
        part = {"flexible": "kl", "label": "ce"}.get(name, name)
        expected |= {f"loss/{part}_{n}": small(outputs[f"logits/{n}"]) for n in (2, 4)}
    assert losses == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert outputs["loss"].item() == pytest.approx(sum(expected.values()), rel=1e-5)


@pytest.mark.parametrize("name", all_tasks())
def test_equal_weights_change_nothing(name: str) -> None:
    data = smoothed(batch(COUNTS), mixup=0.3)
    losses = []
    for weights in (None, torch.ones(3)):
        torch.manual_seed(3)
        losses.append(weighted(all_tasks()[name], weights)(data)["loss"].item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_halves_of_a_batch_add_up() -> None:
    """As micro-batches and processes do, whichever classes they hold."""
    task, data = weighted(flexible_task(COUNTS)), batch(COUNTS, size=6)
    order = torch.tensor([0, 3, 1, 4, 2, 5])  # classes 0 0 1 and 1 2 2
    halves = [
        {"clips": {t: c[part] for t, c in data["clips"].items()}, "label": data["label"][part]}
        for part in order.split(3)
    ]
    mean = sum(task(half)["loss"].item() for half in halves) / 2
    assert mean == pytest.approx(task(data)["loss"].item(), rel=1e-5)


def test_half_precision_logits() -> None:
    task, label = weighted(PlainTask(tiny(), 8)), torch.tensor([0, 2])
    logits = torch.randn(2, 3, dtype=torch.bfloat16)
    expected = F.cross_entropy(logits.float(), label, weight=WEIGHTS, reduction="sum") / 2
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(task.label_loss(logits, label), expected)


# --- whole runs ---------------------------------------------------------------------------------


def test_run_with_weights_prints_them_and_resumes(unbalanced: Path, tmp_path: Path) -> None:
    more = ("train.class_weights=balanced", "train.batch_size=14", "model.dropout=0")
    run = build(unbalanced, tmp_path / "run", *more)
    assert "class weights: 0.583 (left) to 2.33 (still)" in run.settings
    loop.train(run)
    plain = train(unbalanced, tmp_path / "plain", *more[1:])
    first, other = (read_log(folder)[0] for folder in (run.folder, plain))
    assert first["loss/ce_4"] != pytest.approx(other["loss/ce_4"], rel=1e-4)

    again = build(unbalanced, tmp_path / "run", *more)
    with again.checkpointer.lock():
        assert again.checkpointer.restore().epoch == 2
    assert not any("class_weights" in key for key in run.train_step.model.state_dict())


def test_micro_batches_train_as_one(unbalanced: Path, tmp_path: Path) -> None:
    more = ("train.class_weights=balanced", "train.batch_size=14", "model.dropout=0")
    more += ("train.freeze=[norms]", "train.epochs=1")
    one = train(unbalanced, tmp_path / "one", *more)
    two = train(unbalanced, tmp_path / "two", *more, "train.grad_accum_steps=2")
    for key in ("loss", "grad_norm"):
        values = [[entry[key] for entry in read_log(folder)] for folder in (one, two)]
        assert values[0] == pytest.approx(values[1], rel=1e-4)


class OwnLoss(PlainTask):
    def losses(self, batch: dict[str, Any]) -> Any:
        logits = self.model(self.clips(batch)[4])
        yield "own", F.cross_entropy(logits, batch["label"]), 4, logits


def test_what_is_refused(unbalanced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.TASKS._entries, "own", OwnLoss)
    monkeypatch.setitem(tasks.TASK_OPTIONS, "own", OwnLoss.Options)
    more = ("task.name=own", "task.frames=[4]", "train.class_weights=balanced")
    with pytest.raises(ConfigError, match="task own does not use class weights; set"):
        build(unbalanced, tmp_path, *more)
