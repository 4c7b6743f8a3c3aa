"""Build a run from a config.

This module and ``build_data``, ``build_network`` and ``build_messages`` are the only ones of the
engine that receive a config. All others take plain values.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ffn.core import frame_ranges
from ffn.data import Normalize, Splits, check_splits
from ffn.engine import build_data, build_messages, build_network
from ffn.engine.checkpointer import Checkpointer, list_videos
from ffn.engine.checkpoints import checkpoints_in
from ffn.engine.config import ConfigError, changed_options
from ffn.engine.distributed import World, on_main
from ffn.engine.loop import Run
from ffn.engine.meter import Meter
from ffn.engine.options import Config
from ffn.engine.run_log import RunLog
from ffn.engine.tasks import TASKS
from ffn.engine.train_step import TrainStep
from ffn.labels import SingleLabel
from ffn.zoo import WeightRecord


@dataclass
class Training:
    """The parts of a run that train a network.

    Attributes:
        splits: the videos and the classes.
        loader: micro-batches of this process.
        step: model, loss and optimizer.
        start: match with the start weights, and their record; None without.
    """

    splits: Splits
    loader: DataLoader
    step: TrainStep
    start: build_network.Start | None


def build_training(config: Config, world: World, *, is_new: bool = True) -> Training:
    """Build what trains the network of a config, without a run folder.

    Args:
        config: a checked config.
        world: the processes; all of them call it.
        is_new: the run has no checkpoint, which would replace all weights.

    Raises:
        ConfigError: the options do not fit the data, the model or the device.
        OSError, ValueError: annotations or weights cannot be read.
    """
    if config.train.deterministic:
        build_network.use_deterministic_algorithms()
    build_data.check_labels(config)
    labelled = TASKS[config.task.name].needs_labels
    splits = build_data.read_config_splits(config.data, labelled=labelled)
    check_splits(splits)
    classes = len(splits.classes)
    model, start = build_network.build_started_model(config, classes, world, is_new=is_new)
    class_weights = build_data.build_class_weights(config, splits)
    step = build_train_step(config, model, world, num_classes=classes, class_weights=class_weights)
    step.task.labels = splits.labels
    step.task.check(splits, config.data.crop)
    loader = build_data.build_train_loader(config, splits, world, step.task)
    return Training(splits, loader, step, start)


def build_run(config: Config, world: World, name: str = "run") -> Run:
    """Build all parts of a training run.

    Args:
        config: a checked config.
        world: the processes; all of them call it.
        name: of the folder in ``runs``, if the config has no ``log.output``; see
            :func:`numbered_folder`.

    Raises:
        As :func:`build_training`.
    """
    folder = Path(config.log.output or on_main(lambda: numbered_folder(config, name), world))
    log = config.log.model_copy(update={"output": str(folder)})
    config = config.model_copy(update={"log": log})
    is_new = on_main(lambda: not checkpoints_in(folder), world)
    training = build_training(config, world, is_new=is_new)
    splits, step = training.splits, training.step
    steps_per_epoch = len(training.loader) // config.train.grad_accum_steps
    meter = Meter(world, accuracy=splits.labels is SingleLabel)
    frames = sorted({*config.task.frames, *config.data.test_frames})
    preprocessing = build_data.build_preprocessing(config.data)
    return Run(
        folder=folder,
        world=world,
        train_loader=training.loader,
        val_loader=build_data.build_test_loader(
            config,
            splits,
            world,
            frames=frames,
            preprocessing=preprocessing,
            task=step.task,
        ),
        train_step=step,
        meter=meter,
        checkpointer=Checkpointer(
            folder,
            step,
            meter,
            world,
            keep=config.train.keep_checkpoints,
            metadata=_metadata(config, splits),
            videos=list_videos(splits, config.data.root),
            changed_options=partial(changed_options, now=config),
        ),
        learning_rate=build_network.build_schedule(config),
        open_log=partial(
            RunLog,
            folder,
            world,
            total_steps=config.train.epochs * steps_per_epoch,
            config=config.model_dump(),
            **config.log.model_dump(include={"wandb", "project", "tensorboard"}),
        ),
        introduction=build_messages.introduction(
            config, splits, step.task, training.start, world, steps_per_epoch
        ),
        trained_frames=config.task.frames,
        measure=step.task.measure or ("map" if splits.multi_label else "top1"),
        epochs=config.train.epochs,
        steps_per_epoch=steps_per_epoch,
        validate_epochs=config.train.validate_epochs,
        patience=config.train.patience,
        save_steps=config.train.save_steps,
        log_interval=config.log.interval,
    )


def numbered_folder(config: Config, name: str) -> str:
    """``runs/NAME``, or the first of ``runs/NAME_2``, … without a run of other options."""
    for number in count(1):
        folder = Path("runs", name if number == 1 else f"{name}_{number}")
        if not any((folder / own).exists() for own in ("config.yaml", "best.pt", "last.pt")):
            break
        with suppress(OSError, ValueError, yaml.YAMLError):  # another program's files
            options = yaml.safe_load((folder / "config.yaml").read_text("utf-8"))
            if isinstance(options, dict) and not changed_options(options, config):
                break
    return str(folder)


def build_train_step(
    config: Config,
    model: nn.Module,
    world: World,
    *,
    num_classes: int,
    class_weights: Tensor | None = None,
) -> TrainStep:
    """The train step of a config for a model of ``build_network.build_model`` on its device.

    Raises:
        ConfigError: the model cannot be trained with these options.
    """
    train, preprocessing = config.train, build_data.build_preprocessing(config.data)
    build_network.prepare_for_training(config, model, world.device)
    task = build_network.build_task(config, model, class_weights).to(world.device)
    return TrainStep(
        task,
        build_network.build_optimizer(config, task),
        world,
        normalize=nn.Identity() if task.reads_features else Normalize(preprocessing),
        batch_mix=build_data.build_batch_mix(config, num_classes),
        precision=train.precision,
        sequential=train.views == "sequential",
        grad_accum_steps=train.grad_accum_steps,
        clip_grad_norm=train.clip_grad_norm,
        ema_decay=train.ema_decay,
        may_skip=config.data.on_error == "skip",
        advice=f"Lower optim.lr ({config.optim.lr:g}), or set train.clip_grad_norm",
        seed=train.seed,
    )


def _metadata(config: Config, splits: Splits) -> dict[str, Any]:
    """Description of the network and the run for checkpoints: plain values.

    Raises:
        ConfigError: a checkpoint with it could not be loaded.
    """
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
    meta = {
        "model": config.model.name,
        "num_classes": len(splits.classes),
        **network,
        "classes": list(splits.classes),
        "multi_label": splits.multi_label,
        "labels": config.data.labels if config.data.labels not in ("single", "multi") else "",
        "model_args": build_network.model_args(config),
        "preprocessing": build_data.build_preprocessing(config.data).to_dict(),
        "imports": list(config.imports),
        "config": config.model_dump(),
        "versions": {name: version(name) for name in ("torch", "torchvision", "timm")},
        "data": splits.fingerprint(),
    }
    try:
        WeightRecord.from_checkpoint(meta, "best")
    except ValueError as error:
        raise ConfigError(f"the checkpoints of this run could not be loaded: {error}") from error
    return meta
