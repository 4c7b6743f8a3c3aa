"""Whole runs in this process, on a generated data set of real mp4 files."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from engine_toys import (
    CLASSES,
    CPU,
    config,
    options,
    read_log,
    same_weights,
    train,
    weights,
    write_videos,
)

from ffn.cli.train import main
from ffn.core import WeightAlteration
from ffn.data import VideoError
from ffn.engine import loop, step
from ffn.engine.checkpoint import load_checkpoint, save_checkpoint
from ffn.engine.config import ConfigError, config_to_dict
from ffn.engine.failures import REPORTED, OutOfMemoryError
from ffn.engine.loop import Trainer

STEPS = 4  # per epoch: 24 videos in batches of 6


def folder_content(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


# --- what a run leaves --------------------------------------------------------------------------


def test_run_leaves_config_checkpoints_and_log(videos: Path, finished: Path) -> None:
    assert sorted(os.listdir(finished)) == [
        ".lock",
        "best.pt",
        "checkpoints",
        "config.yaml",
        "last.pt",
        "log.jsonl",
    ]
    saved = yaml.safe_load((finished / "config.yaml").read_text())
    assert saved == config_to_dict(config(videos, finished))

    steps = read_log(finished)
    assert [entry["step"] for entry in steps] == list(range(1, 2 * STEPS + 1))
    losses = {"loss", "loss/ce_4", "loss/kl_2", "top1/2", "top1/4"}
    extra = {"step", "time", "epoch", "lr", "grad_norm"}
    extra |= {"bad_steps", "videos_per_s", "data_wait", "memory_mib"}
    assert all(set(entry) == losses | extra for entry in steps)
    assert [entry["lr"] for entry in steps] == pytest.approx([0.01] * STEPS + [0.001] * STEPS)
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
        assert meta["preprocessing"]["crop"] == 16
        assert set(meta["metrics"]) == {"2", "3", "4"}
        assert {"top1", "top5", "mean_class"} <= set(meta["metrics"]["3"])
        assert meta["config"] == config_to_dict(config(videos, finished))
        assert meta["data"]["train_videos"] == 24
        assert len(meta["data"]["sha256"]) == 64
        assert "prepared" not in meta["data"]  # no dataset.json beside the lists
    assert (last["training"]["epoch"], last["training"]["step"]) == (2, 2 * STEPS)


def test_best_is_the_best_mean_over_the_trained_counts(finished: Path) -> None:
    best = load_checkpoint(finished / "best.pt")["meta"]["metrics"]
    means = [entry["mean"] for entry in read_log(finished, "val")]

    assert (best["2"]["top1"] + best["4"]["top1"]) / 2 == pytest.approx(max(means))


def test_same_seed_same_run_and_other_seed_another(
    videos: Path, finished: Path, tmp_path: Path
) -> None:
    again = train(videos, tmp_path / "again")
    other = train(videos, tmp_path / "other", "train.seed=1")

    assert same_weights(again, finished)
    assert not same_weights(other, finished)


def test_workers_change_nothing(videos: Path, finished: Path, tmp_path: Path) -> None:
    assert same_weights(train(videos, tmp_path / "run", "data.workers=1"), finished)


# --- a folder that exists -----------------------------------------------------------------------


def test_finished_run_says_so_and_stays(
    videos: Path, finished: Path, capsys: pytest.CaptureFixture
) -> None:
    before = folder_content(finished)

    may_change = ("log.interval=7", "data.workers=1", "data.store=other")
    train(videos, finished, *may_change)

    assert folder_content(finished) == before
    assert "finished already, 2 of 2 epochs done" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("train.epochs=3", "train.epochs 2 -> 3"),
        ("optim.lr=0.5", "optim.lr 0.01 -> 0.5"),
        ("task.frames=[2,3]", r"task.frames \[2, 4\] -> \[2, 3\]"),
    ],
)
def test_folder_of_a_run_with_other_options(
    videos: Path, finished: Path, override: str, shown: str
) -> None:
    before = folder_content(finished)

    with pytest.raises(ConfigError, match=f"{shown}.*another log.output"):
        train(videos, finished, override)

    assert folder_content(finished) == before


def test_folder_of_a_run_on_other_videos(videos: Path, finished: Path, tmp_path: Path) -> None:
    moved = load_checkpoint(finished / "last.pt")
    moved["meta"]["data"] = moved["meta"]["data"] | {"train_videos": 23}
    save_checkpoint(tmp_path / "run" / "last.pt", moved)

    with pytest.raises(ConfigError, match="other videos or labels"):
        train(videos, tmp_path / "run")


class Killed(BaseException):
    pass


def train_until(step: int, videos: Path, folder: Path, *more: str) -> None:
    """Stop without any clean-up of the loop's own, before a step."""
    trainer = Trainer(config(videos, folder, *more), CPU)
    clip = trainer.stepper.clip

    def stop() -> Any:
        if trainer.step == step:
            raise Killed
        return clip()

    trainer.stepper.clip = stop
    with pytest.raises(Killed):
        trainer.run()


def test_saving_and_logging_change_nothing(videos: Path, finished: Path, tmp_path: Path) -> None:
    run = train(videos, tmp_path / "run", "train.save_steps=1", "log.interval=3")

    assert same_weights(run, finished)
    assert [entry["step"] for entry in read_log(run)] == [3, 6]


@pytest.mark.parametrize("step", [1, 3, STEPS, STEPS + 2])
def test_interrupted_run_ends_as_if_it_had_not_been(
    videos: Path, finished: Path, tmp_path: Path, step: int
) -> None:
    """With dropout, momentum and running statistics; from the middle and the end of an epoch."""
    saving = "train.save_steps=1"

    train_until(step, videos, tmp_path / "run", saving)
    assert load_checkpoint(tmp_path / "run/last.pt")["training"]["step"] == step
    train(videos, tmp_path / "run", saving)

    assert same_weights(tmp_path / "run", finished)
    losses = {entry["step"]: entry["loss"] for entry in read_log(tmp_path / "run")}
    assert losses == {entry["step"]: entry["loss"] for entry in read_log(finished)}


def test_interrupted_accumulation_and_adamw(videos: Path, tmp_path: Path) -> None:
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
    "data.colour_jitter=[0.4,0.4,0.4,0.1]",
    "data.randaugment=rand-m7-n4-mstd0.5-inc1",
    "data.random_erasing=0.5",
    "data.colour=bgr",
    "data.test_protocol=2x3",
    "train.mixup=0.8",
    "train.cutmix=1",
    "train.label_smoothing=0.1",
    "train.repeated_aug=3",
    "train.save_steps=1",
)


def test_interrupted_run_with_every_augmentation(videos: Path, tmp_path: Path) -> None:
    whole = train(videos, tmp_path / "whole", *AUGMENTED, "data.workers=1")
    steps = [entry["step"] for entry in read_log(whole)]
    assert steps == list(range(1, 2 * 12 + 1))  # 24 videos, 2 of them per step, 3 times each

    train_until(5, videos, tmp_path / "run", *AUGMENTED)
    train(videos, tmp_path / "run", *AUGMENTED)

    assert same_weights(tmp_path / "run", whole)
    losses = [[entry["loss"] for entry in read_log(tmp_path / name)] for name in ("run", "whole")]
    assert losses[0] == losses[1]
    assert load_checkpoint(whole / "last.pt")["meta"]["preprocessing"]["colour"] == "bgr"


@pytest.mark.parametrize("option", [AUGMENTED[i] for i in (0, 3, 4, 5, 8, 9, 10, 11)])
def test_every_augmentation_has_an_effect(
    videos: Path, finished: Path, tmp_path: Path, option: str
) -> None:
    run = train(videos, tmp_path / "run", option, "train.epochs=1", "data.cache_gib=1")

    assert read_log(run)[0]["loss"] != pytest.approx(read_log(finished)[0]["loss"], rel=1e-6)


def test_mixed_videos_are_drawn_anew_in_every_step(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(
        config(videos, tmp_path / "run", "train.mixup=1", "train.grad_accum_steps=2"), CPU
    )
    keys = []
    mix = trainer.stepper.mix

    def watch(batch: dict[str, Any], **key: int) -> dict[str, Any]:
        keys.append((key["step"], key["micro"], key["rank"]))
        return mix(batch, **key)

    monkeypatch.setattr(trainer.stepper, "mix", watch)
    monkeypatch.setattr(trainer, "_validate", lambda log: None)
    trainer.run()

    assert keys == [(step, micro, 0) for step in range(2 * STEPS) for micro in range(2)]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_interrupted_run_in_half_precision(videos: Path, tmp_path: Path, precision: str) -> None:
    """The scale of fp16 and how long it has held go on."""
    more = (f"train.precision={precision}", "train.save_steps=1")
    whole = train(videos, tmp_path / "whole", *more)

    train_until(3, videos, tmp_path / "run", *more)
    train(videos, tmp_path / "run", *more)

    assert same_weights(tmp_path / "run", whole)
    one, other = (load_checkpoint(f / "last.pt")["training"] for f in (tmp_path / "run", whole))
    assert one["scaler"] == other["scaler"]
    assert bool(one["scaler"]) == (precision == "fp16")


def test_interrupted_run_with_averages_and_exact_statistics(videos: Path, tmp_path: Path) -> None:
    more = (
        "train.ema_decay=0.9",
        "train.precise_bn=2",
        "optim.layer_decay=0.7",
        "train.save_steps=1",
    )
    whole = train(videos, tmp_path / "whole", *more)
    for until in (2, STEPS, STEPS + 1):
        train_until(until, videos, tmp_path / "run", *more)
    train(videos, tmp_path / "run", *more)

    assert same_weights(tmp_path / "run", whole)
    one, other = (load_checkpoint(f / "last.pt")["training"] for f in (tmp_path / "run", whole))
    assert all(torch.equal(value, other["weights"][key]) for key, value in one["weights"].items())


def test_average_of_the_weights_is_what_is_validated_and_kept(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the formula: a_t = d a_(t-1) + (1 - d) w_t with d = min(decay, 1 - t^(-2/3))."""
    trainer = Trainer(config(videos, tmp_path / "run", "train.ema_decay=0.5"), CPU)
    expected: dict[str, torch.Tensor] = {}
    update, evaluate = trainer.stepper.update, loop.evaluate

    def watch(*args: Any, **place: Any) -> Any:
        verdict = update(*args, **place)
        d = min(0.5, 1 - (trainer.step + 1) ** (-2 / 3))
        for key, value in trainer.model.state_dict().items():
            old = expected.get(key, value)
            new = d * old + (1 - d) * value if value.is_floating_point() else value
            expected[key] = new.clone()
        return verdict

    def hold(network: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        for key, value in network.state_dict().items():
            torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)
        return evaluate(network, *args, **kwargs)

    trainer.stepper.update = watch
    monkeypatch.setattr(loop, "evaluate", hold)
    trainer.run()

    for key, value in weights(tmp_path / "run").items():
        torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)
        assert key in weights(tmp_path / "run", "best.pt")
    raw = load_checkpoint(tmp_path / "run/last.pt")["training"]["weights"]
    assert any(not torch.equal(value, expected[key]) for key, value in raw.items())


def test_exact_statistics_are_those_of_batches(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first norm: mean and variance of the first convolution over the named batches."""
    more = ("train.precise_bn=3", "train.epochs=1", "model.name=tsm_tiny")
    trainer = Trainer(config(videos, tmp_path / "run", *more), CPU)
    trainer.run()

    trainer.train_loader.sampler.set_epoch(1)
    batches = [batch for _, batch in zip(range(3), trainer.train_loader, strict=False)]
    name, conv = next(
        (n, m) for n, m in trainer.model.named_modules() if isinstance(m, torch.nn.Conv2d)
    )
    norm = dict(trainer.model.named_modules())[f"{name.rpartition('.')[0]}.1"]
    for frames in (2, 4):
        seen = [
            conv(trainer.normalise(batch["clips"][frames]).transpose(1, 2).flatten(0, 1))
            for batch in batches
        ]
        values = torch.cat(seen).double().transpose(0, 1).flatten(1)
        found = norm[str(frames)]
        torch.testing.assert_close(
            found.running_mean.double(), values.mean(1), rtol=1e-5, atol=1e-6
        )
        torch.testing.assert_close(found.running_var.double(), values.var(1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("views", ["together", "sequential"])
def test_recomputed_run_is_the_run(
    videos: Path, finished: Path, tmp_path: Path, views: str
) -> None:
    run = train(
        videos, tmp_path / "run", "train.activation_checkpointing=true", f"train.views={views}"
    )
    other = (
        finished
        if views == "together"
        else train(videos, tmp_path / "plain", f"train.views={views}")
    )
    assert same_weights(run, other)


@pytest.mark.slow
def test_compiled_run_is_the_run(videos: Path, finished: Path, tmp_path: Path) -> None:
    """Losses of eight steps; rounding differs."""
    more = ("train.compile=true", "train.ema_decay=0.5", "train.precise_bn=1", "model.dropout=0")
    run = train(videos, tmp_path / "run", *more)
    plain = train(videos, tmp_path / "plain", *more, "train.compile=false")

    for key in ("loss", "loss/kl_2", "grad_norm"):
        found, expected = ([e[key] for e in read_log(folder)] for folder in (run, plain))
        assert found == pytest.approx(expected, rel=2e-3, abs=1e-4)
    assert list(weights(run)) == list(weights(plain))


def test_network_without_blocks_is_not_recomputed(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(model: torch.nn.Module) -> int:
        raise ValueError("no blocks")

    monkeypatch.setattr(loop.build, "checkpoint_blocks", refuse)
    with pytest.raises(ConfigError, match="tsm_tiny: no blocks"):
        Trainer(config(videos, tmp_path / "run", "train.activation_checkpointing=true"), CPU)


def test_deterministic_runs_repeat(videos: Path, tmp_path: Path) -> None:
    try:
        runs = [train(videos, tmp_path / n, "train.deterministic=true") for n in ("one", "two")]
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert same_weights(*runs)


def test_run_from_before_an_option_existed_goes_on(
    videos: Path, finished: Path, tmp_path: Path
) -> None:
    """Its default is what was done before."""
    train_until(3, videos, tmp_path / "run", "train.save_steps=1")
    last = load_checkpoint(tmp_path / "run/last.pt")
    for section, option in (("data", "crop_mode"), ("train", "mixup"), ("train", "repeats")):
        del last["meta"]["config"][section][option]
    save_checkpoint(tmp_path / "run/last.pt", last)

    with pytest.raises(ConfigError, match=r"train\.mixup 0\.0 -> 0\.5"):
        train(videos, tmp_path / "run", "train.save_steps=1", "train.mixup=0.5")
    train(videos, tmp_path / "run", "train.save_steps=1")

    assert same_weights(tmp_path / "run", finished)


def test_damaged_checkpoint_is_passed_over_and_kept(
    videos: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    train_until(3, videos, tmp_path / "run", "train.save_steps=1")
    newest = tmp_path / "run/checkpoints/step_00000003.pt"
    newest.write_bytes(newest.read_bytes()[:1000])  # last.pt is the same file

    train(videos, tmp_path / "run", "train.save_steps=1")

    said = capsys.readouterr().out
    assert re.search(r"passed over: .*step_00000003\.pt .*(damaged|cut off)", said)
    assert "run: continued, 0 of 2 epochs and 2 step(s) done" in said
    assert same_weights(tmp_path / "run", finished)
    broken = list((tmp_path / "run/checkpoints").glob("*.broken"))
    assert [path.stat().st_size for path in broken] == [1000]


def test_folder_whose_checkpoints_are_all_damaged_stays(videos: Path, tmp_path: Path) -> None:
    train_until(3, videos, tmp_path / "run", "train.save_steps=1")
    for path in (tmp_path / "run/checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:1000])
    before = folder_content(tmp_path / "run")

    with pytest.raises(
        ValueError, match=r"(?s)2 checkpoint\(s\) and none can be used.*another log"
    ):
        train(videos, tmp_path / "run", "train.save_steps=1")

    after = folder_content(tmp_path / "run")
    assert {name: after[name] for name in before} == before


def test_best_network_without_anything_to_continue_from_is_not_overwritten(
    videos: Path, finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints")
    (tmp_path / "run/last.pt").unlink()
    before = folder_content(tmp_path / "run")

    with pytest.raises(ConfigError, match=r"best\.pt, and no checkpoint.*would overwrite it"):
        train(videos, tmp_path / "run")

    after = folder_content(tmp_path / "run")
    assert {name: after[name] for name in before} == before


def test_run_that_continues_needs_no_start_weights(
    videos: Path, finished: Path, tmp_path: Path
) -> None:
    shutil.copy(finished / "best.pt", tmp_path / "start.pt")
    more = ("train.save_steps=1", f"model.weights={tmp_path / 'start.pt'}")
    train_until(3, videos, tmp_path / "run", *more)
    shutil.copy(tmp_path / "start.pt", tmp_path / "again.pt")
    (tmp_path / "start.pt").unlink()

    train(videos, tmp_path / "run", *more)

    whole = train(videos, tmp_path / "whole", f"model.weights={tmp_path / 'again.pt'}")
    assert same_weights(tmp_path / "run", whole)


def test_accuracy_in_a_checkpoint_is_that_of_its_weights(videos: Path, tmp_path: Path) -> None:
    more = ("train.save_steps=1", "train.keep_checkpoints=9")
    train(videos, tmp_path / "run", *more)

    for number in range(1, 2 * STEPS + 1):
        path = tmp_path / f"run/checkpoints/step_{number:08d}.pt"
        assert bool(load_checkpoint(path)["meta"]["metrics"]) == (number % STEPS == 0)


def test_full_disk_under_the_log(
    videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/log.jsonl").symlink_to("/dev/full")
    (tmp_path / "empty.yaml").write_text("{}")

    assert main([str(tmp_path / "empty.yaml"), *options(videos, tmp_path / "run")]) == 2
    assert "No space left on device" in capsys.readouterr().err


def test_more_exact_statistics_than_an_epoch_has(videos: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="asks for 5 micro-batches, and an epoch has 4"):
        Trainer(config(videos, tmp_path / "run", "train.precise_bn=5"), CPU)


def test_start_from_weights(videos: Path, finished: Path, tmp_path: Path) -> None:
    start = f"model.weights={finished / 'last.pt'}"
    trainer = Trainer(config(videos, tmp_path / "run", start), CPU)

    expected = weights(finished)
    assert all(
        torch.equal(value, expected[key]) for key, value in trainer.model.state_dict().items()
    )
    assert trainer.step == 0


# --- arithmetic ---------------------------------------------------------------------------------


def in_float64(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """So that differences between two ways to sum are far below those that a mistake makes."""
    trainer.stepper.task.double()
    to_device = step.to_device

    def convert(batch: dict[str, Any], *more: Any) -> dict[str, Any]:
        batch = to_device(batch, *more)
        return {**batch, "clips": {t: clip.double() for t, clip in batch["clips"].items()}}

    monkeypatch.setattr(step, "to_device", convert)
    monkeypatch.setattr(trainer, "_validate", lambda log: None)
    return trainer


@pytest.mark.parametrize("views", ["together", "sequential"])
def test_accumulated_micro_batches_are_one_batch(
    videos: Path, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, views: str
) -> None:
    more = (start, f"train.views={views}", "train.freeze_bn=true", "model.dropout=0")

    entries, states = [], []
    for accumulate in (1, 2, 3):
        folder = tmp_path / str(accumulate)
        options = config(videos, folder, *more, f"train.grad_accum_steps={accumulate}")
        with monkeypatch.context() as patch:
            trainer = in_float64(Trainer(options, CPU), patch)
            trainer.run()
        entries.append(read_log(folder))
        states.append(trainer.model.state_dict())

    for other, state in zip(entries[1:], states[1:], strict=True):
        for key in ("loss", "loss/ce_4", "loss/kl_2", "top1/2", "top1/4", "grad_norm"):
            found, expected = ([entry[key] for entry in run] for run in (other, entries[0]))
            assert found == pytest.approx(expected, rel=1e-6)
            assert max(expected) > 1e-2
        for key, value in state.items():
            torch.testing.assert_close(value, states[0][key], rtol=1e-6, atol=1e-6)


def test_sequential_views_train_as_together(videos: Path, finished: Path, tmp_path: Path) -> None:
    sequential = train(videos, tmp_path / "run", "train.views=sequential")  # dropout on

    losses = [[entry["loss"] for entry in read_log(folder)] for folder in (sequential, finished)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_frozen_norms_stay(videos: Path, tmp_path: Path) -> None:
    trainer = Trainer(config(videos, tmp_path / "run", "train.freeze_bn=true"), CPU)
    before = {key: value.clone() for key, value in trainer.model.state_dict().items()}

    trainer.run()

    after = trainer.model.state_dict()
    moved = {key for key in before if not torch.equal(before[key], after[key])}
    norms = {key for key in before if ".bn" in key or ".running" in key or "downsample.1" in key}
    norms |= {key for key in before if key.startswith(("net.conv1.1.", "net.conv1.4."))}  # stem
    assert not moved & norms
    assert moved == set(before) - norms


@pytest.mark.parametrize("views", ["together", "sequential"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_clips_in_units_of_the_loss(
    videos: Path, tmp_path: Path, precision: str, views: str
) -> None:
    limit = 0.05
    more = (f"train.precision={precision}", f"train.views={views}", f"train.clip_grad_norm={limit}")
    trainer = Trainer(config(videos, tmp_path / "run", *more, "train.epochs=1"), CPU)
    stepped: list[float] = []
    step = trainer.stepper.scaler.step

    def watch(optimiser: torch.optim.Optimizer) -> Any:
        gradients = [p.grad.double().norm() for g in optimiser.param_groups for p in g["params"]]
        stepped.append(float(torch.stack(gradients).norm()))
        return step(optimiser)

    trainer.stepper.scaler.step = watch
    before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    trainer.run()

    assert trainer.stepper.scaler.is_enabled() == (precision == "fp16")
    assert len(stepped) == STEPS
    assert max(stepped) == pytest.approx(limit, rel=1e-3)
    norms = [entry["grad_norm"] for entry in read_log(tmp_path / "run")]
    assert all(limit < norm < 50 for norm in norms)  # before clipping, and without loss scale
    assert all(entry["loss"] < 5 for entry in read_log(tmp_path / "run"))
    after = trainer.model.state_dict()
    assert all(torch.isfinite(value).all() for value in after.values())
    assert not torch.equal(after["net.fc.weight"], before["net.fc.weight"])


def test_without_clipping_the_norm_is_measured_alone(videos: Path, tmp_path: Path) -> None:
    trainer = Trainer(config(videos, tmp_path / "run", "train.clip_grad_norm=null"), CPU)
    for parameter in trainer.model.parameters():
        parameter.grad = torch.ones_like(parameter)

    norm = trainer.stepper.clip()

    assert norm == pytest.approx(sum(p.numel() for p in trainer.model.parameters()) ** 0.5)
    assert all((p.grad == 1).all() for p in trainer.model.parameters())


def test_loss_that_is_not_finite(videos: Path, tmp_path: Path) -> None:
    more = ("optim.lr=1e30", "train.clip_grad_norm=null", "train.max_bad_steps=3")
    with pytest.raises(FloatingPointError, match=r"loss is not finite around step 4.*optim\.lr"):
        train(videos, tmp_path / "run", *more)


# --- other tasks --------------------------------------------------------------------------------


def test_plain_task(videos: Path, tmp_path: Path) -> None:
    folder = train(videos, tmp_path / "run", "task.name=plain", "task.frames=[4]", "train.epochs=1")

    content = load_checkpoint(folder / "best.pt")
    assert content["meta"]["trained_frames"] is None
    assert not any(".4." in key and "bn" in key for key in content["model"])
    assert "loss/ce_4" in read_log(folder)[0]
    assert {"top1/2", "top1/3", "top1/4"} < set(read_log(folder, "val")[0])


@pytest.mark.parametrize(
    "more",
    [
        ("task.private=all",),
        ("task.private=none",),
        ("task.alteration=false", "task.private=none"),
        ("task.small_views=mixed", "data.nested=true", "optim.groups=standard"),
        ("task.frames=[5]", "data.test_frames=[1,5]"),
    ],
    ids=str,
)
def test_options_of_the_task(videos: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    trainer = Trainer(config(videos, tmp_path / "run", *more, "train.epochs=1"), CPU)
    trainer.run()

    altered = any(isinstance(m, WeightAlteration) for m in trainer.model.modules())
    assert altered == (more[0] not in ("task.alteration=false", "task.private=all"))
    assert load_checkpoint(tmp_path / "run/best.pt")["meta"]["metrics"]


@pytest.mark.parametrize("name", ["tea_tiny", "slowfast_tiny", "uniformer_tiny"])
def test_every_family_trains(videos: Path, tmp_path: Path, name: str) -> None:
    options = [f"model.name={name}", "data.crop=16", "data.resize=16", "train.epochs=1"]
    trainer = Trainer(config(videos, tmp_path / "run", *options), CPU)
    before = {k: v.clone() for k, v in trainer.model.named_parameters()}

    trainer.run()

    moved = [k for k, v in trainer.model.named_parameters() if not torch.equal(v, before[k])]
    assert len(moved) > 0.9 * len(before)
    assert load_checkpoint(tmp_path / "run/best.pt")["meta"]["model"] == name


def test_half_precision_of_3d_convolutions_on_a_cpu_is_refused(
    videos: Path, tmp_path: Path
) -> None:
    options = ["model.name=slowfast_tiny", "train.precision=bf16"]
    with pytest.raises(ConfigError, match=r"train\.precision=bf16 on a CPU gives wrong gradients"):
        Trainer(config(videos, tmp_path / "run", *options), CPU)


# --- broken videos ------------------------------------------------------------------------------


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    (tmp_path / "broken").mkdir()
    folder = write_videos(tmp_path / "broken")
    (folder / "train_3.mp4").write_bytes(b"no video")
    (folder / "train_7.mp4").unlink()
    (folder / "val_0.mp4").write_bytes(b"")
    return folder


def test_broken_video_ends_the_run_and_is_named(
    broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(VideoError, match=r"train_[37]\.mp4"):
        train(broken, tmp_path / "run")

    (tmp_path / "empty.yaml").write_text("")
    status = main([str(tmp_path / "empty.yaml"), *options(broken, tmp_path / "other")])
    assert status == 2
    assert "train_" in capsys.readouterr().err


def test_skipped_videos_are_counted_and_shown(
    broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = train(broken, tmp_path / "run", "data.on_error=skip")

    assert [entry["skipped"] for entry in read_log(folder, "skipped")] == [2, 2]
    shown = capsys.readouterr().out
    assert "epoch 1: 2 unreadable videos skipped" in shown
    assert "train_3.mp4" in shown
    assert "train_7.mp4" in shown
    assert "1 unreadable videos counted as wrong" in shown
    metrics = load_checkpoint(folder / "last.pt")["meta"]["metrics"]
    assert metrics["4"]["failed"] == 1


def test_too_few_videos_for_a_step(videos: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"batch_size is 25, .* 25 videos per step, and there are 24"
    ):
        train(videos, tmp_path / "run", "train.batch_size=25")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    ],
    ids=["cpu", "cuda"],
)
def test_batch_that_does_not_fit(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    trainer = Trainer(config(videos, tmp_path / "run"), CPU)

    def refuse() -> None:
        raise error

    monkeypatch.setattr(trainer.stepper, "clip", refuse)
    with pytest.raises(
        OutOfMemoryError, match=r"6 videos need more memory .*train\.activation_checkpointing=true"
    ):
        trainer.run()
    assert OutOfMemoryError in REPORTED


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.yaml"], "no config file missing.yaml"),
        (["EMPTY", "train.epoch=1"], "did you mean train.epochs?"),
        (["EMPTY", "data.root=/nowhere", "log.output=OUT"], "/nowhere"),
        (["EMPTY", "task.name=plain"], "plain trains exactly one"),
    ],
)
def test_command_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture, arguments: list[str], message: str
) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("{}")
    given = [
        a.replace("EMPTY", str(empty)).replace("OUT", str(tmp_path / "run")) for a in arguments
    ]

    assert main(given) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("train.py: ")
    assert len(captured.err.splitlines()) == 1


def test_log_is_valid_json(finished: Path) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    for line in (finished / "log.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
