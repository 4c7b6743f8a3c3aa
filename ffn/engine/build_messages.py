"""The lines that a run prints at its start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ffn.data import Splits, split_warnings
from ffn.devices import SLOW_BF16, has_bf16, usable_cores
from ffn.engine import build_data, build_network, recipe
from ffn.engine.build_network import Start
from ffn.engine.distributed import World
from ffn.engine.freezing import frozen_parts
from ffn.engine.logs import console
from ffn.engine.options import Config
from ffn.engine.tasks import TASKS


def introduction(
    config: Config, splits: Splits, model: nn.Module, start: Start | None
) -> list[str]:
    """Lines about a new run: network, videos, start weights."""
    lines = console.new_run(
        config.model.name,
        config.task.name,
        train_videos=len(splits.train),
        val_videos=len(splits.val),
        classes=len(splits.classes),
        report=getattr(model, "report", None),
    )
    lines += build_data.describe_videos(config.data, splits)
    if start is not None:
        lines.append(f"start weights {config.model.weights}: {start[0]}")
    if config.train.compile:
        lines.append("compiling: the first step of each frame count takes a minute or more")
    return lines


def settings(
    config: Config,
    splits: Splits,
    model: nn.Module,
    start: Start | None,
    world: World,
    steps_per_epoch: int,
    class_weights: Tensor | None,
) -> list[str]:
    """Lines about batches, learning rate, frozen parts and weights, and warnings."""
    return [
        _schedule_line(config, world, steps_per_epoch),
        *_frames_line(config),
        *_frozen_line(model),
        *_class_weights_line(splits, class_weights),
        *(f"warning: {text}" for text in _warnings(config, splits, model, start, world)),
    ]


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
        precision=config.train.precision,
        device=world.device.type,
    )


def _frames_line(config: Config) -> list[str]:
    if not build_network.lengths_change(config):
        return []
    return [console.frame_counts(TASKS[config.task.name].views(config.task))]


def _class_weights_line(splits: Splits, class_weights: Tensor | None) -> list[str]:
    if class_weights is None:
        return []
    note = "the mean over the training videos is 1"
    note = "of the positive labels" if splits.multi_label else note
    return [console.class_weights(class_weights, splits.classes, note)]


def _frozen_line(model: nn.Module) -> list[str]:
    parts = frozen_parts(model)
    if not parts:
        return []
    total = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return [console.frozen(parts, trained=trained, total=total)]


def _warnings(
    config: Config, splits: Splits, model: nn.Module, start: Start | None, world: World
) -> Iterator[str]:
    train = config.train
    yield from split_warnings(splits)
    yield from recipe.patience_warnings(
        train.patience, epochs=train.epochs, validate_epochs=train.validate_epochs
    )
    yield from recipe.learning_rate_warnings(
        config.model.name,
        config.optim.name,
        build_network.scaled_learning_rate(config),
        train.batch_size,
        fine_tuning=config.model.weights is not None,
    )
    yield from recipe.warmup_warnings(config.optim.warmup_epochs, train.epochs)
    yield from recipe.optimizer_warnings(
        _changed(config.optim),
        name=config.optim.name,
        schedule=config.optim.schedule,
        milestones=config.optim.milestones,
        epochs=train.epochs,
        linear_probe="head_only" in train.freeze,
    )
    if world.device.type == "cpu":
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", world.size))
        yield from recipe.thread_warnings(torch.get_num_threads(), processes, usable_cores())
        if train.precision == "bf16" and not has_bf16():
            yield f"{SLOW_BF16}; train.precision=fp32 is faster here"
    if config.data.flip == "random":
        yield from recipe.flip_warnings(splits.classes)
    if config.model.weights is None and not config.model.pretrained:
        yield from recipe.random_feature_warnings(
            freeze=bool({*train.freeze} - {"norms"}),
        )
    clips = build_data.clips_per_forward(config, world)
    yield from recipe.mix_warnings(clips, mixup=train.mixup, cutmix=train.cutmix)
    yield from recipe.batch_norm_warnings(
        model,
        clips=clips * (world.size if train.sync_bn else 1),
        freeze_bn=bool({"norms", "head_only"} & {*train.freeze}),
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


def _changed(options: Any) -> set[str]:
    """Names of options that do not have their default values."""
    defaults = type(options)()
    return {n for n in type(options).model_fields if getattr(options, n) != getattr(defaults, n)}
