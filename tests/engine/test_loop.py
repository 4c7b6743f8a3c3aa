"""Whole runs in this process, on generated mp4 files."""

from __future__ import annotations

import os
from pathlib import Path

import multi_label_videos
import pytest
import torch
import yaml
from engine_toys import (
    CLASSES,
    STEPS,
    build,
    config,
    read_log,
    same_weights,
    train,
    write_videos,
)

from ffn.data import VideoError
from ffn.engine import loop
from ffn.engine.checkpoints import load_checkpoint

# --- output of a run ----------------------------------------------------------------------------


def test_run_writes_config_checkpoints_and_log(videos: Path, finished: Path) -> None:
    names = {".lock", "best.pt", "checkpoints", "config.yaml", "last.pt", "log.jsonl", "videos.csv"}
    assert {*os.listdir(finished)} == names
    saved = yaml.safe_load((finished / "config.yaml").read_text())
    assert saved == config(videos, finished).model_dump()

    steps = read_log(finished)
    assert [entry["step"] for entry in steps] == list(range(1, 2 * STEPS + 1))
    losses = {"loss", "loss/ce_4", "loss/kl_2", "top1/2", "top1/4"}
    extra = {"step", "time", "epoch", "lr", "grad_norm"}
    extra |= {"bad_steps", "videos_per_s", "data_wait", "memory_mib"}
    assert all(set(entry) == losses | extra for entry in steps)
    assert [entry["lr"] for entry in steps] == pytest.approx([0.01] * STEPS + [0.001] * STEPS)
    assert [entry["epoch"] for entry in steps] == [i / STEPS for i in range(1, 2 * STEPS + 1)]
    for entry in steps:
        assert entry["loss"] == pytest.approx(entry["loss/ce_4"] + entry["loss/kl_2"], rel=1e-6)
        assert 0 <= entry["data_wait"] <= 1

    validations = read_log(finished, "val")
    assert [entry["epoch"] for entry in validations] == [1, 2]
    for entry in validations:
        assert {"top1/2", "top1/3", "top1/4", "mean"} < set(entry)
        assert entry["mean"] == pytest.approx((entry["top1/2"] + entry["top1/4"]) / 2)
    assert [entry["skipped"] for entry in read_log(finished, "skipped")] == [0, 0]


def test_checkpoint_describes_itself(videos: Path, finished: Path) -> None:
    best, last = (load_checkpoint(finished / name) for name in ("best.pt", "last.pt"))

    assert set(best) == {"format", "model", "meta"}
    assert set(last) == {"format", "model", "meta", "training"}
    for content in (best, last):
        meta = content["meta"]
        assert (meta["model"], meta["num_classes"], meta["classes"]) == ("tsm_tiny", 3, [*CLASSES])
        assert (meta["trained_frames"], meta["private"]) == ([2, 4], "norms")
        assert (meta["alter"], meta["imports"]) == ("sites", [])
        assert meta["preprocessing"]["crop"] == 16
        assert set(meta["metrics"]) == {"2", "3", "4"}
        assert {"top1", "top5", "mean_class"} <= set(meta["metrics"]["3"])
        assert meta["config"] == config(videos, finished).model_dump()
        assert meta["data"]["train_videos"] == 24
        assert len(meta["data"]["sha256"]) == 64
    assert (last["training"]["epoch"], last["training"]["step"]) == (2, 2 * STEPS)
    best = best["meta"]["metrics"]
    means = [entry["mean"] for entry in read_log(finished, "val")]
    assert (best["2"]["top1"] + best["4"]["top1"]) / 2 == pytest.approx(max(means))


# --- the same result ----------------------------------------------------------------------------


@pytest.mark.slow
def test_options_that_change_nothing(videos: Path, finished: Path, tmp_path: Path) -> None:
    """Another seed does."""
    more = ("data.workers=1", "train.save_steps=1", "log.interval=3", "train.deterministic=true")
    try:
        run = train(videos, tmp_path / "run", *more, "train.activation_checkpointing=true")
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert same_weights(run, finished)
    assert [entry["step"] for entry in read_log(run)] == [3, 6]
    long = train(videos, tmp_path / "long", "log.interval=50", "train.seed=1")
    assert not same_weights(long, finished)
    assert [entry["step"] for entry in read_log(long)] == [STEPS, 2 * STEPS]  # ends of epochs


# --- tasks, models, augmentation ----------------------------------------------------------------


def test_several_labels(tmp_path: Path) -> None:
    several = multi_label_videos.write_multi_label_videos(tmp_path)
    with pytest.raises(ValueError, match=r"train.csv .* data.labels=multi"):
        build(several, tmp_path / "single")
    more = ("train.mixup=0.4", "train.label_smoothing=0.1", "train.class_weights=sqrt")
    folder = train(several, tmp_path / "run", "data.labels=multi", *more)

    entries = read_log(folder)
    assert {"loss/bce_4", "loss/kl_2"} < entries[0].keys()
    assert not any("top1" in key for entry in entries for key in entry)
    meta = load_checkpoint(folder / "best.pt")["meta"]
    assert (meta["multi_label"], meta["classes"]) == (True, [*multi_label_videos.CLASSES])
    assert all({"map", "f1"} <= values.keys() for values in meta["metrics"].values())


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("tsm_tiny", "task.private=all"),
        ("tea_tiny", "task.frames=[5]"),
        ("slowfast_tiny", "data.nested=true"),
        ("uniformer_tiny", "optim.name=adamw"),
        ("vit_tiny", "optim.name=adamw"),
    ],
)
def test_every_family_trains(videos: Path, tmp_path: Path, name: str, more: str) -> None:
    options = [f"model.name={name}", "data.crop=16", "data.resize=16", "train.epochs=1"]
    run = build(videos, tmp_path / "run", *options, more)
    parameters = dict(run.train_step.model.named_parameters())
    before = {key: value.clone() for key, value in parameters.items()}

    loop.train(run)

    moved = [key for key, value in parameters.items() if not torch.equal(value, before[key])]
    assert len(moved) > 0.9 * len(before)
    assert load_checkpoint(tmp_path / "run/best.pt")["meta"]["model"] == name


def test_every_augmentation_has_an_effect(videos: Path, finished: Path, tmp_path: Path) -> None:
    losses = {read_log(finished)[0]["loss"]}
    options = (
        "data.crop_mode=resized",
        "data.color_jitter=[0.4,0.4,0.4,0.1]",
        "data.randaugment=rand-m7-n4-mstd0.5-inc1",
        "data.random_erasing=0.5",
        "train.mixup=0.8",
        "train.cutmix=1",
        "train.label_smoothing=0.1",
        "train.repeated_aug=3",
    )
    for number, option in enumerate(options, 2):
        run = build(videos, tmp_path / "run", option)
        run.train_loader.sampler.set_epoch(0)
        result = run.train_step.step(run.train_loader, number=0, lr=0.01)
        losses.add(round(result.outputs[0]["loss"].item(), 6))
        assert len(losses) == number, option


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_skipped_videos_are_counted_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Without data.on_error, the first ends the run, and so does a validation without videos."""
    (tmp_path / "broken").mkdir()
    broken = write_videos(tmp_path / "broken")
    (broken / "train_3.mp4").write_bytes(b"no video")
    (broken / "train_7.mp4").unlink()
    (broken / "val_0.mp4").write_bytes(b"")
    with pytest.raises(VideoError, match=r"train_[37]\.mp4"):
        train(broken, tmp_path / "fails")
    capsys.readouterr()
    folder = train(broken, tmp_path / "run", "data.on_error=skip")

    assert [entry["skipped"] for entry in read_log(folder, "skipped")] == [2, 2]
    assert [entry["failed"] for entry in read_log(folder, "val")] == [1, 1]
    shown = capsys.readouterr().out
    lines = (folder / "unreadable.txt").read_text().splitlines()
    names = ["train_3.mp4", "train_7.mp4", "val_0.mp4"]
    assert [Path(line.partition(":")[0]).name for line in lines] == names
    assert [shown.count(name) for name in names] == [1, 1, 1]
    metrics = load_checkpoint(folder / "last.pt")["meta"]["metrics"]
    assert metrics["4"]["failed"] == 1

    for path in broken.glob("val_*.mp4"):
        path.write_bytes(b"no video")
    with pytest.raises(VideoError, match=r"none of 9 videos can be read; .*val_0\.mp4"):
        train(broken, tmp_path / "none", "data.on_error=skip")
    assert not (tmp_path / "none/best.pt").exists()
