"""Interrupted runs: resumed, they end with the weights and the log of an uninterrupted run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from engine_toys import STEPS, build, read_log, same_weights, train, train_until

from ffn.engine import loop
from ffn.engine.checkpoints import load_checkpoint

SAVE = "train.save_steps=1"


@pytest.mark.parametrize("step", [1, 3, STEPS, STEPS + 2])
def test_resumed_run_equals_an_uninterrupted_one(
    videos: Path, finished: Path, tmp_path: Path, step: int
) -> None:
    """With dropout, momentum and running statistics; from the middle and the end of an epoch."""
    train_until(step, videos, tmp_path / "run", SAVE)
    assert load_checkpoint(tmp_path / "run/last.pt")["training"]["step"] == step
    train(videos, tmp_path / "run", SAVE)

    assert same_weights(tmp_path / "run", finished)
    losses = {entry["step"]: entry["loss"] for entry in read_log(tmp_path / "run")}
    assert losses == {entry["step"]: entry["loss"] for entry in read_log(finished)}


def test_gradient_accumulation_and_adamw(videos: Path, tmp_path: Path) -> None:
    more = (
        "train.save_steps=2",
        "train.grad_accum_steps=2",
        "optim.name=adamw",
        "train.views=sequential",
    )
    whole = train(videos, tmp_path / "whole", *more)

    train_until(3, videos, tmp_path / "run", *more)
    assert load_checkpoint(tmp_path / "run/last.pt")["training"]["step"] == 2
    train(videos, tmp_path / "run", *more)

    assert same_weights(tmp_path / "run", whole)


AUGMENTED = (
    "data.crop_mode=resized",
    "data.flip=swap",
    "data.flip_pairs=[[left,right]]",
    "data.color_jitter=[0.4,0.4,0.4,0.1]",
    "data.randaugment=rand-m7-n4-mstd0.5-inc1",
    "data.random_erasing=0.5",
    "data.color=bgr",
    "data.test_protocol=2x3",
    "train.mixup=0.8",
    "train.cutmix=1",
    "train.label_smoothing=0.1",
    "train.repeated_aug=3",
    SAVE,
)


@pytest.mark.slow
def test_every_augmentation(videos: Path, tmp_path: Path) -> None:
    whole = train(videos, tmp_path / "whole", *AUGMENTED, "data.workers=1")
    steps = [entry["step"] for entry in read_log(whole)]
    assert steps == list(range(1, 2 * 12 + 1))  # 24 videos, 2 of them per step, 3 samples each

    train_until(5, videos, tmp_path / "run", *AUGMENTED)
    train(videos, tmp_path / "run", *AUGMENTED)

    assert same_weights(tmp_path / "run", whole)
    losses = [[entry["loss"] for entry in read_log(tmp_path / name)] for name in ("run", "whole")]
    assert losses[0] == losses[1]
    assert load_checkpoint(whole / "last.pt")["meta"]["preprocessing"]["color"] == "bgr"


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp16", marks=pytest.mark.slow)])
def test_half_precision(videos: Path, tmp_path: Path, precision: str) -> None:
    """The loss scale of fp16, and the number of steps since its last change, are restored."""
    more = (f"train.precision={precision}", SAVE)
    whole = train(videos, tmp_path / "whole", *more)

    train_until(3, videos, tmp_path / "run", *more)
    train(videos, tmp_path / "run", *more)

    assert same_weights(tmp_path / "run", whole)
    one, other = (load_checkpoint(f / "last.pt")["training"] for f in (tmp_path / "run", whole))
    assert one["scaler"] == other["scaler"]
    assert bool(one["scaler"]) == (precision == "fp16")


def test_moving_average_and_exact_statistics(videos: Path, tmp_path: Path) -> None:
    more = ("train.ema_decay=0.9", "train.precise_bn=2", "optim.layer_decay=0.7", SAVE)
    whole = train(videos, tmp_path / "whole", *more)
    for until in (2, STEPS, STEPS + 1):
        train_until(until, videos, tmp_path / "run", *more)
    train(videos, tmp_path / "run", *more)

    assert same_weights(tmp_path / "run", whole)
    one, other = (load_checkpoint(f / "last.pt")["training"] for f in (tmp_path / "run", whole))
    assert all(torch.equal(value, other["weights"][key]) for key, value in one["weights"].items())


def test_interrupted_validation_is_repeated(
    videos: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No training step is repeated for it."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "validate", killed)
        with pytest.raises(KeyboardInterrupt):
            train(videos, tmp_path / "run")
    training = load_checkpoint(tmp_path / "run/last.pt")["training"]
    assert (training["step"], training["validates"]) == (STEPS, True)

    run = build(videos, tmp_path / "run")
    numbers, step = [], run.train_step.step
    run.train_step.step = lambda *given, number, **more: (
        numbers.append(number),
        step(*given, number=number, **more),
    )[1]
    loop.train(run)

    assert numbers == list(range(STEPS, 2 * STEPS))
    assert same_weights(tmp_path / "run", finished)
    assert [entry["epoch"] for entry in read_log(tmp_path / "run", "val")] == [1, 2]


def test_resumed_run_needs_no_start_weights(videos: Path, finished: Path, tmp_path: Path) -> None:
    shutil.copy(finished / "best.pt", tmp_path / "start.pt")
    more = (SAVE, f"model.weights={tmp_path / 'start.pt'}")
    train_until(3, videos, tmp_path / "run", *more)
    shutil.copy(tmp_path / "start.pt", tmp_path / "again.pt")
    (tmp_path / "start.pt").unlink()

    train(videos, tmp_path / "run", *more)

    whole = train(videos, tmp_path / "whole", f"model.weights={tmp_path / 'again.pt'}")
    assert same_weights(tmp_path / "run", whole)


def test_damaged_checkpoint_is_skipped(
    videos: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    train_until(3, videos, tmp_path / "run", SAVE)
    newest = tmp_path / "run/checkpoints/step_00000003.pt"
    newest.write_bytes(newest.read_bytes()[:1000])  # last.pt is the same file

    train(videos, tmp_path / "run", SAVE)

    shown = capsys.readouterr().out
    assert re.search(r"invalid checkpoint: .*step_00000003\.pt .*(damaged|truncated)", shown)
    assert "run: resumed after 0 of 2 epochs and 2 step(s)" in shown
    assert same_weights(tmp_path / "run", finished)


def test_options_without_effect_on_the_result_may_change(
    videos: Path, finished: Path, tmp_path: Path
) -> None:
    train_until(3, videos, tmp_path / "run", SAVE, "imports=[json]")
    train(
        videos,
        tmp_path / "run",
        "data.workers=1",
        "log.interval=2",
        "train.keep_checkpoints=1",
        "imports=[json,csv]",
    )

    assert same_weights(tmp_path / "run", finished)
