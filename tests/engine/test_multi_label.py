"""Training with several labels per video: losses of every task, mixing, weights, refusals."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engine_toys import CPU, all_tasks, batch, build, config, read_log, train
from multi_label_videos import CLASSES, write_multi_label_videos

from ffn.engine.build_data import build_class_weights, read_config_splits
from ffn.engine.checkpoints import load_checkpoint
from ffn.engine.config import ConfigError
from ffn.engine.logs.meter import Meter
from ffn.engine.mixup import BatchMix
from ffn.engine.tasks import PlainTask, Task
from ffn.engine.tasks import base as tasks
from ffn.engine.train_step import StepResult
from ffn.labels import MultiLabel

COUNTS = (2, 4, 8)
MULTI = "data.labels=multi"
WEIGHTS = torch.tensor([0.5, 2.0, 5.0])


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_multi_label_videos(tmp_path_factory.mktemp("several"))


def multi_label_tasks() -> dict[str, Task]:
    found = all_tasks()
    for task in found.values():
        task.labels = MultiLabel
    return found


def labelled(size: int = 5) -> dict[str, Any]:
    random = torch.Generator().manual_seed(7)
    label = (torch.rand(size, 3, generator=random) < 0.5).float()
    label[0] = 0  # a video without a label
    return batch(COUNTS, size=size) | {"label": label}


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("name", multi_label_tasks())
def test_loss_of_every_task(name: str, mixed: bool, weights: torch.Tensor | None) -> None:
    task, data = multi_label_tasks()[name].eval(), labelled()
    task.class_weights = weights
    if mixed:
        mix = BatchMix(3, mixup=0.5, smoothing=0.2, seed=1, multi_label=True)
        data = mix(data, step=0, micro=0, rank=0)
    torch.manual_seed(3)
    outputs = task(data)
    label = data["label"].double().numpy()
    factor = 1 if weights is None else weights.double().numpy()

    def probabilities(view: int) -> np.ndarray:
        return 1 / (1 + np.exp(-outputs[f"logits/{view}"].double().numpy()))

    def bce(view: int) -> float:
        p = probabilities(view)
        return -(factor * label * np.log(p) + (1 - label) * np.log(1 - p)).mean()

    def small(view: int) -> float:
        p, q = probabilities(8), probabilities(view)
        kl = (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).mean()
        return {"flexible": kl, "label": bce(view), "mixed": (kl + bce(view)) / 2}[name]

    expected = {"loss/bce_8": bce(8)}
    if name in ("flexible", "label", "mixed"):
        part = {"flexible": "kl", "label": "bce"}.get(name, name)
        expected |= {f"loss/{part}_{n}": small(n) for n in (2, 4)}
    losses = {key: float(value) for key, value in outputs.items() if key.startswith("loss/")}
    assert losses == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert outputs["loss"].item() == pytest.approx(sum(expected.values()), rel=1e-5)


def test_the_teacher_gets_no_gradient_from_the_smaller_views() -> None:
    task, data = multi_label_tasks()["flexible"].eval(), labelled()
    gradients = []
    for views in (COUNTS, (8,)):
        task.trained_frames = views
        task.zero_grad()
        task(data)["loss"].backward()
        named = task.named_parameters()
        gradients.append({n: p.grad for n, p in named if ".8." in n and p.grad is not None})
    assert gradients[0]
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], gradient)


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_labels_are_mixed_and_smoothed(kind: str) -> None:
    data = labelled()
    plain = BatchMix(3, **{kind: 1.0}, seed=3, multi_label=True)(data, step=0, micro=0, rank=0)
    mix = BatchMix(3, **{kind: 1.0}, seed=3, smoothing=0.2, multi_label=True)
    mixed = mix(data, step=0, micro=0, rank=0)

    before, other = data["label"], data["label"].roll(1, 0)
    differs = before != other
    ratio = ((plain["label"] - other) / (before - other))[differs]
    assert ratio.numpy() == pytest.approx(ratio[0].item(), abs=1e-6)
    assert 0 < ratio[0] < 1
    torch.testing.assert_close(plain["label"][~differs], before[~differs])
    torch.testing.assert_close(mixed["label"], 0.8 * plain["label"] + 0.1)
    assert mix.absent == pytest.approx(0.1)
    unchanged = BatchMix(3, multi_label=True)(data, step=0, micro=0, rank=0)
    assert unchanged["label"] is data["label"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["train.class_weights=balanced"], [1.0, 11.0, 5.0]),  # (12 - n_c) / n_c
        (["train.class_weights=sqrt"], [1.0, 11**0.5, 5**0.5]),
        # a flip exchanges the last two in half of the samples: 1.5 videos of each
        (
            ["train.class_weights=balanced", "data.flip=swap", "data.flip_pairs=[[slide,tint]]"],
            [1.0, 7.0, 7.0],
        ),
    ],
)
def test_weights_of_the_positive_labels(
    several: Path, tmp_path: Path, options: list[str], expected: list[float]
) -> None:
    labels = ["pulse|slide", "pulse|tint", "tint", *["pulse"] * 4, *[""] * 5]
    with (tmp_path / "train.csv").open("w", newline="") as file:
        rows = [(f"{several}/train_{i}.mp4", label) for i, label in enumerate(labels)]
        csv.writer(file).writerows([("path", "labels"), *rows])
    val = (several / "val.csv").read_text().replace("val_", f"{several}/val_")
    (tmp_path / "val.csv").write_text(val)
    given = config(tmp_path, tmp_path / "run", MULTI, *options)

    found = build_class_weights(given, read_config_splits(given.data))

    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(expected)


def test_run_logs_the_mean_average_precision(several: Path, tmp_path: Path) -> None:
    more = (MULTI, "train.mixup=0.4", "train.label_smoothing=0.1", "train.class_weights=sqrt")
    folder = train(several, tmp_path / "run", *more)

    entries = read_log(folder)
    assert {"loss/bce_4", "loss/kl_2"} < entries[0].keys()
    assert not any("top1" in key for entry in entries for key in entry)
    best = load_checkpoint(folder / "best.pt")
    assert best["meta"]["multi_label"] is True
    assert best["meta"]["classes"] == list(CLASSES)
    assert all({"map", "f1"} <= values.keys() for values in best["meta"]["metrics"].values())


def test_micro_batches_and_sequential_views_train_as_one(several: Path, tmp_path: Path) -> None:
    same = (MULTI, "train.freeze=[norms]", "train.epochs=1", "model.dropout=0")
    losses = []
    for number, more in enumerate([(), ("train.grad_accum_steps=2",), ("train.views=sequential",)]):
        folder = train(several, tmp_path / f"{number}", *same, *more)
        losses.append([e["loss"] for e in read_log(folder) if "loss" in e])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)


class OwnLoss(PlainTask):
    def losses(self, batch: dict[str, Any]) -> Any:
        logits = self.model(batch["clips"][4])
        yield "own", F.cross_entropy(logits, batch["label"]), 4, logits


def test_what_is_refused(several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"train.csv .* data.labels=multi"):
        build(several, tmp_path)
    monkeypatch.setitem(tasks.TASKS._entries, "own", OwnLoss)
    monkeypatch.setitem(tasks.TASK_OPTIONS, "own", OwnLoss.Options)
    more = ("task.name=own", "task.frames=[4]", MULTI)
    with pytest.raises(ConfigError, match="task own does not use several labels per video; set"):
        build(several, tmp_path, *more)


def test_training_batches_have_no_accuracy() -> None:
    outputs = {"loss": torch.ones(()), "logits/4": torch.randn(2, 3), "label": torch.ones(2, 3)}
    meter = Meter(CPU, accuracy=False)
    meter.add(StepResult([outputs | {"skipped": []}], torch.ones(()), True, None, False))
    assert {"loss"} <= meter.means().keys()
    assert "top1/4" not in meter.means()
