"""Training with several labels per video: losses of every task, mixing, weights, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toys import batch, build, read_log, train
from multi_label_videos import CLASSES, write_multi_label_videos

from ffn.engine.checkpoints import load_checkpoint
from ffn.engine.mixup import BatchMix

COUNTS = (2, 4, 8)
MULTI = "data.labels=multi"


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_multi_label_videos(tmp_path_factory.mktemp("several"))


def labelled(size: int = 5) -> dict[str, Any]:
    random = torch.Generator().manual_seed(7)
    label = (torch.rand(size, 3, generator=random) < 0.5).float()
    label[0] = 0  # a video without a label
    return batch(COUNTS, size=size) | {"label": label}


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


@pytest.mark.slow
def test_micro_batches_and_sequential_views_train_as_one(several: Path, tmp_path: Path) -> None:
    same = (MULTI, "train.freeze=[norms]", "train.epochs=1", "model.dropout=0")
    losses = []
    for number, more in enumerate([(), ("train.grad_accum_steps=2",), ("train.views=sequential",)]):
        folder = train(several, tmp_path / f"{number}", *same, *more)
        losses.append([e["loss"] for e in read_log(folder) if "loss" in e])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)


def test_several_labels_need_their_option(several: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train.csv .* data.labels=multi"):
        build(several, tmp_path)
