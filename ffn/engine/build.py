"""Build a run from a config.

This module, ``build_data`` and ``build_network`` are the only ones of the engine that receive a
config. All others take plain values.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from ffn import zoo
from ffn.core import frame_ranges
from ffn.data import Normalise, Splits
from ffn.engine import build_data, build_network, recipe
from ffn.engine.checkpoints.checkpointer import Checkpointer
from ffn.engine.checkpoints.file import versions
from ffn.engine.checkpoints.folder import RunFolder
from ffn.engine.compile import with_changing_lengths
from ffn.engine.config import ConfigError, changed_options, config_to_dict
from ffn.engine.distributed import World, gather
from ffn.engine.logs import console
from ffn.engine.logs.meter import Meter
from ffn.engine.logs.run_log import BadBatches, RunLog
from ffn.engine.mixup import BatchMix
from ffn.engine.options import Config, Flip, Precision, Views
from ffn.engine.run import Run
from ffn.engine.sync_bn import convert_sync_bn
from ffn.engine.tasks import TASKS
from ffn.engine.train_step import TrainStep
from ffn.engine.validation import Validator


def build_run(config: Config, world: World) -> Run:
    """Build all parts of a training run.

    Args:
        config: a checked config.
        world: the processes; all of them call it.

    Raises:
        ConfigError: the options do not fit the data, the model or the device.
        OSError, ValueError: annotations or weights cannot be read.
    """
    if config.train.deterministic:
        _use_deterministic_algorithms()
    folder = RunFolder(Path(config.log.output), keep=config.train.keep_checkpoints)
    splits = build_data.read_config_splits(config.data)
    train_loader = build_data.build_train_loader(config, splits, world)
    steps_per_epoch = _steps_per_epoch(config, train_loader, len(splits.train))
    is_new = gather(folder.is_empty, world)[0]  # else the weights come from a checkpoint
    model, start = _build_network(config, splits, world, is_new=is_new)
    bad_batches = BadBatches(
        folder.path / "bad_batches.jsonl", [record.path for record in splits.train], world
    )
    train_step = build_train_step(
        config, model, world, num_classes=len(splits.classes), bad_batches=bad_batches
    )
    meter = Meter(world)
    return Run(
        folder=folder.path,
        world=world,
        train_loader=train_loader,
        train_step=train_step,
        meter=meter,
        validator=_build_validator(config, splits, train_step, train_loader, world),
        checkpointer=Checkpointer(
            folder,
            train_step,
            meter,
            world,
            metadata=_metadata(config, splits),
            changed_options=partial(changed_options, now=config),
        ),
        learning_rate=build_network.build_schedule(config),
        open_log=partial(_open_log, config, world, config.train.epochs * steps_per_epoch),
        introduction=_introduction(config, splits, model, start),
        settings=[
            _schedule_line(config, world, steps_per_epoch),
            *_frames_line(config),
            *(f"warning: {text}" for text in _warnings(config, splits, model, start, world)),
        ],
        epochs=config.train.epochs,
        steps_per_epoch=steps_per_epoch,
        validate_epochs=config.train.validate_epochs,
        save_steps=config.train.save_steps,
        log_interval=config.log.interval,
    )


def build_train_step(
    config: Config,
    model: nn.Module,
    world: World,
    *,
    num_classes: int,
    bad_batches: BadBatches | None = None,
) -> TrainStep:
    """The train step of a config for a model on its device.

    Args:
        config: the options.
        model: as :func:`ffn.engine.build_network.build_model` returned it.
        world: the processes.
        num_classes: K.
        bad_batches: file for the videos of bad steps.

    Raises:
        ConfigError: the model cannot be trained with these options.
    """
    train = config.train
    build_network.prepare_for_training(config, model, world.device)
    batch_mix = BatchMix(
        num_classes,
        mixup=train.mixup,
        cutmix=train.cutmix,
        smoothing=train.label_smoothing,
        seed=train.seed,
    )
    changing = train.compile and build_network.lengths_change(config)
    return TrainStep(
        build_network.build_task(config, model).to(world.device),
        build_network.build_optimiser(config, model),
        world,
        normalise=Normalise(build_data.build_preprocessing(config.data)),
        batch_mix=with_changing_lengths(batch_mix) if changing else batch_mix,
        precision=train.precision.value,
        sequential=train.views is Views.sequential,
        grad_accum_steps=train.grad_accum_steps,
        clip_grad_norm=train.clip_grad_norm,
        ema_decay=train.ema_decay,
        max_bad_steps=train.max_bad_steps,
        bad_batches=bad_batches,
        advice=_advice(config),
        seed=train.seed,
    )


Start = tuple[zoo.Match, zoo.WeightRecord]


def _build_network(
    config: Config, splits: Splits, world: World, *, is_new: bool
) -> tuple[nn.Module, Start | None]:
    """The network on its device, and what is known of its start weights."""
    torch.manual_seed(config.train.seed)  # the same initialisation on every process
    model = build_network.build_model(
        config, len(splits.classes), pretrained=is_new and config.model.pretrained
    ).to(world.device)
    start = None
    if is_new and config.model.weights is not None:
        start = zoo.load_start_weights(model, config.model.weights)
    if config.train.sync_bn:
        model = convert_sync_bn(model, world)
    return model, start


def _build_validator(
    config: Config, splits: Splits, train_step: TrainStep, train_loader: DataLoader, world: World
) -> Validator:
    loader = build_data.build_test_loader(
        config,
        splits,
        world,
        frames=sorted({*config.task.frames, *config.data.test_frames}),
        preprocessing=build_data.build_preprocessing(config.data),
    )
    return Validator(
        train_step,
        loader,
        world,
        trained_frames=config.task.frames,
        batch_size=build_data.clips_per_forward(config, world),
        precise_bn=config.train.precise_bn,
        train_loader=train_loader,
    )


def _steps_per_epoch(config: Config, loader: DataLoader, videos: int) -> int:
    steps = len(loader) // config.train.grad_accum_steps
    if steps < 1:
        raise ConfigError(
            f"train.batch_size is {config.train.batch_size}; {videos} training videos are less "
            "than one batch. Lower train.batch_size"
        )
    if config.train.precise_bn > len(loader):
        raise ConfigError(
            f"train.precise_bn is {config.train.precise_bn}; an epoch has {len(loader)} "
            "micro-batches. Use that or less"
        )
    return steps


def _metadata(config: Config, splits: Splits) -> dict[str, Any]:
    """Description of the network and the run for checkpoints: plain values."""
    network = {"trained_frames": None, "private": "none", "alter": "none"}
    conversion = build_network.conversion_of(config)
    if conversion is not None:  # a record has the defaults of ffn.convert
        frames = conversion["trained_frames"]
        ranges = frame_ranges(frames)
        network = {
            **conversion,
            "trained_frames": list(ranges),
            "ranges": [list(ends) for ends in ranges.values()] if isinstance(frames, dict) else [],
        }
    return {
        "model": config.model.name,
        "num_classes": len(splits.classes),
        **network,
        "classes": list(splits.classes),
        "preprocessing": build_data.build_preprocessing(config.data).to_dict(),
        "imports": list(config.imports),
        "config": config_to_dict(config),
        "versions": versions(),
        "data": splits.fingerprint(),
    }


def _open_log(
    config: Config, world: World, total_steps: int, first_step: int, is_finished: bool
) -> RunLog:
    return RunLog(
        Path(config.log.output),
        world,
        first_step=first_step,
        total_steps=total_steps,
        wandb_mode="disabled" if is_finished else config.log.wandb.value,
        project=config.log.project,
        config=config_to_dict(config),
        tensorboard=config.log.tensorboard and not is_finished,
    )


def _introduction(
    config: Config, splits: Splits, model: nn.Module, start: Start | None
) -> list[str]:
    lines = console.new_run(
        config.model.name,
        config.task.name,
        train_videos=len(splits.train),
        val_videos=len(splits.val),
        classes=len(splits.classes),
        report=getattr(model, "report", None),
    )
    if start is not None:
        lines.append(f"start weights {config.model.weights}: {start[0]}")
    if config.train.compile:
        lines.append("compiling: the first step of each frame count takes a minute or more")
    return lines


def _schedule_line(config: Config, world: World, steps_per_epoch: int) -> str:
    optim = config.optim
    return console.schedule(
        epochs=config.train.epochs,
        steps_per_epoch=steps_per_epoch,
        batch_size=config.train.batch_size,
        repeated_aug=config.train.repeated_aug,
        processes=world.size,
        grad_accum_steps=config.train.grad_accum_steps,
        lr=build_network.scaled_learning_rate(config),
        base=None if optim.base_batch_size is None else (optim.lr, optim.base_batch_size),
        precision=config.train.precision.value,
        device=world.device.type,
    )


def _frames_line(config: Config) -> list[str]:
    if not build_network.lengths_change(config):
        return []
    return [console.frame_counts(TASKS[config.task.name].views(config.task))]


def _warnings(
    config: Config, splits: Splits, model: nn.Module, start: Start | None, world: World
) -> Iterator[str]:
    train = config.train
    yield from recipe.learning_rate_warnings(
        config.model.name,
        config.optim.name.value,
        build_network.scaled_learning_rate(config),
        train.batch_size,
        fine_tuning=config.model.weights is not None,
    )
    if config.data.flip is Flip.random:
        yield from recipe.flip_warnings(splits.classes)
    clips = build_data.clips_per_forward(config, world)
    yield from recipe.batch_norm_warnings(
        model,
        clips=clips * (world.size if train.sync_bn else 1),
        freeze_bn=train.freeze_bn,
        sync_bn=train.sync_bn,
        precise_bn=train.precise_bn,
    )
    if start is not None:
        match, record = start
        yield from recipe.folded_norm_warnings(config.model.weights, model)
        yield from recipe.start_weight_warnings(
            config.model.weights,
            share=match.share,
            start_classes=None if match.classes is not None else record.classes,
            classes=splits.classes,
        )


def _advice(config: Config) -> str:
    """Remedy for non-finite numbers."""
    remedies = ["lower optim.lr"]
    if config.train.clip_grad_norm is None:
        remedies.append("set train.clip_grad_norm")
    if config.train.precision is Precision.fp16:
        remedies.append("train in bf16 or fp32")
    return f"Remedies: {', '.join(remedies)}"


def _use_deterministic_algorithms() -> None:
    """Restrict torch to deterministic algorithms, for this process.

    An operation without one raises torch's RuntimeError when it runs, e.g. the gradient of 3-D
    pooling on CUDA. cuBLAS needs its workspace setting before CUDA starts.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
