"""Interrupted runs: resumed, they end with the weights and the log of an uninterrupted run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from engine_toys import (
    DRAWS,
    MIXED,
    PROPORTIONAL,
    RANGES,
    read_log,
    same_weights,
    train,
    train_until,
)

from ffn.engine.checkpoints import load_checkpoint

pytestmark = pytest.mark.slow

SAVE = "train.save_steps=1"
AUGMENTED = (
    "data.crop_mode=resized",
    "data.flip=swap",
    "data.flip_pairs=[[left,right]]",
    "data.color_jitter=[0.4,0.4,0.4,0.1]",
    "data.randaugment=rand-m7-n4-mstd0.5-inc1",
    "data.random_erasing=0.5",
    "data.test_protocol=2x3",
    "train.mixup=0.8",
    "train.cutmix=1",
    "train.label_smoothing=0.1",
    "train.repeated_aug=3",
)
ACCUMULATED = ("train.grad_accum_steps=2", "train.views=sequential")
CONTRASTIVE = ("task.name=contrastive", "data.color_jitter=[0.4,0.4,0.4,0]")
AVERAGED = ("train.ema_decay=0.9", "optim.layer_decay=0.7")


@pytest.mark.parametrize(
    "more",
    [
        (*ACCUMULATED, "optim.name=adamw"),
        (*AVERAGED, "train.freeze=[net.layer1]"),
        ("train.precision=bf16",),
        ("train.precision=fp16",),
        AUGMENTED,
        (*RANGES, *AVERAGED),
        (*DRAWS, *ACCUMULATED, *AVERAGED),
        (*MIXED, *AVERAGED, "train.mixup=0.8"),
        (*PROPORTIONAL, *ACCUMULATED),
        (*CONTRASTIVE, *AVERAGED),
    ],
    ids=lambda more: more[0],
)
def test_resumed_run_equals_an_uninterrupted_one(
    videos: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    """Interrupted in steps and in a validation."""
    whole = train(videos, tmp_path / "whole", *more, "data.workers=1")
    run = tmp_path / "run"
    for until in (2, 5, "validation"):
        train_until(until, videos, run, *more, SAVE)
    train(videos, run, *more, SAVE)

    assert same_weights(run, whole)
    losses = [[(e["step"], e["loss"]) for e in read_log(folder)] for folder in (run, whole)]
    assert losses[0] == losses[1]
    one, other = (load_checkpoint(folder / "last.pt")["training"] for folder in (run, whole))
    assert one["scaler"] == other["scaler"]
    assert bool(one["scaler"]) == ("train.precision=fp16" in more)
    assert bool(one["task"]) == (CONTRASTIVE[0] in more)
    for part in ("weights", "task"):
        for key, value in one.get(part, {}).items():
            assert torch.equal(value, other[part][key])


def test_damage_and_options_without_effect_change_nothing(
    videos: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """The newest checkpoint is truncated; the start weights, which are not needed, are moved."""
    weights = Path(shutil.copy(finished / "best.pt", tmp_path / "start.pt"))
    start, run = f"model.weights={weights}", tmp_path / "run"
    whole = train(videos, tmp_path / "whole", start)
    train_until(3, videos, run, SAVE, start, "imports=[json]")
    weights.rename(tmp_path / "moved.pt")
    newest = run / "checkpoints/step_00000003.pt"
    newest.write_bytes(newest.read_bytes()[:1000])  # last.pt is the same file

    other = ("data.workers=1", "train.keep_checkpoints=1", "imports=[json,csv]")
    train(videos, run, start, *other)

    shown = capsys.readouterr().out
    assert re.search(r"invalid checkpoint: .*step_00000003\.pt .*(damaged|truncated)", shown)
    assert "run: resumed after 0 of 2 epochs and 2 step(s)" in shown
    assert same_weights(run, whole)
