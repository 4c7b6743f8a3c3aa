"""Config in, objects out. Past this file nobody sees a config: constructors receive values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from ffn import core, data, zoo
from ffn.engine import optim
from ffn.engine.activation_checkpointing import checkpoint_blocks
from ffn.engine.checkpoint import versions
from ffn.engine.compile import compile_network
from ffn.engine.config import ConfigError, config_to_dict
from ffn.engine.distributed import World
from ffn.engine.mixup import BatchMix
from ffn.engine.options import Config, DataConfig, Flip, Groups, Optimiser, Precision, Task
from ffn.engine.sources import frame_source, open_store, training_order
from ffn.engine.tasks import FlexibleTask, PlainTask
from ffn.engine.videos import Videos


def build_preprocessing(options: DataConfig) -> data.Preprocessing:
    """What a clip goes through, as it will travel with the weights."""
    return data.Preprocessing(
        crop=options.crop,
        resize=options.resize,
        mean=tuple(options.mean),
        std=tuple(options.std),
        colour=options.colour.value,
        sampling=options.sampling.value,
    )


def build_train_loader(config: Config, videos: Videos, world: World) -> DataLoader:
    """Training batches: one micro-batch of this process each.

    Raises:
        ConfigError: the batch size cannot be shared evenly, or the store's frames are too small.
        data.StoreError: the store cannot be used.
    """
    options, train = config.data, config.train
    share = world.size * train.grad_accum_steps
    if train.batch_size % (share * train.repeated_aug):
        raise ConfigError(
            f"train.batch_size {train.batch_size} is not divisible by {world.size} processes x "
            f"{train.grad_accum_steps} micro-batches x {train.repeated_aug} repeats; give a "
            f"multiple of {share * train.repeated_aug}"
        )
    if train.batch_size // train.repeated_aug > len(videos.train):
        raise ConfigError(
            f"train.batch_size is {train.batch_size}, for train.repeated_aug={train.repeated_aug} "
            f"that is {train.batch_size // train.repeated_aug} videos per step, and there are "
            f"{len(videos.train)}; lower train.batch_size"
        )
    store = open_store(options, resize=options.resize)
    preprocessing = build_preprocessing(options)
    dataset = data.VideoDataset(
        videos.train,
        views=config.task.frames,
        preprocessing=preprocessing,
        train=True,
        transform=build_transform(options, preprocessing, videos.classes),
        nested=options.nested,
        seed=config.train.seed,
        on_error=options.on_error.value,
        cache_bytes=int(options.cache_gib * 2**30),
        **frame_source(options, store),
    )
    return data.make_loader(
        dataset,
        batch_size=train.batch_size // share,
        workers=options.workers,
        timeout=options.timeout,
        train=True,
        repeats=train.repeated_aug,
        seed=config.train.seed,
        rank=world.rank,
        world_size=world.size,
        order=training_order(options, store, videos.train),
    )


def build_transform(
    options: DataConfig, preprocessing: data.Preprocessing, classes: Sequence[str]
) -> data.TrainTransform:
    """Crop, flip and augmentation of training."""
    pairs = options.flip_pairs
    return data.TrainTransform(
        preprocessing,
        crop_mode=options.crop_mode.value,
        scales=options.scales,
        area=options.area,
        aspect=options.aspect,
        jitter_scales=options.jitter_scales,
        flip=options.flip.value,
        flip_pairs=data.swap_pairs(pairs, classes) if options.flip is Flip.swap else (),
        colour_jitter=options.colour_jitter,
        randaugment=options.randaugment,
        random_erasing=options.random_erasing,
    )


def build_mix(config: Config, num_classes: int) -> BatchMix:
    """What mixes the videos of a batch and softens labels; with no such option, nothing."""
    train = config.train
    return BatchMix(
        num_classes,
        mixup=train.mixup,
        cutmix=train.cutmix,
        smoothing=train.label_smoothing,
        seed=train.seed,
    )


def clips_per_forward(config: Config, world: World) -> int:
    """Clips per forward of a test on each process: as many as one of training has."""
    return max(1, config.train.batch_size // (world.size * config.train.grad_accum_steps))


def build_test_loader(
    config: Config,
    videos: Videos,
    world: World,
    *,
    frames: Sequence[int],
    preprocessing: data.Preprocessing,
    protocol: str | None = None,
) -> DataLoader:
    """Validation batches with a clip per frame count, each video on one process only.

    The more often a protocol looks at a video, the fewer videos are in a batch: memory stays.
    """
    protocol = data.Protocol.parse(protocol or config.data.test_protocol)
    store = open_store(config.data, resize=preprocessing.resize)
    dataset = data.VideoDataset(
        videos.val,
        views=frames,
        preprocessing=preprocessing,
        protocol=protocol,
        on_error=config.data.on_error.value,
        **frame_source(config.data, store),
    )
    return data.make_loader(
        dataset,
        batch_size=max(1, clips_per_forward(config, world) // protocol.views),
        workers=config.data.workers,
        timeout=config.data.timeout,
        rank=world.rank,
        world_size=world.size,
    )


def build_model(config: Config, num_classes: int, *, pretrained: bool = False) -> nn.Module:
    """The network, frame-flexible if the task is; convolutions in channels-last layout.

    Args:
        config: its options.
        num_classes: K.
        pretrained: with published weights.
    """
    options, task = config.model, config.task
    model = zoo.create_model(
        options.name,
        num_classes=num_classes,
        pretrained=pretrained,
        dropout=options.dropout,
        **({"drop_path": options.drop_path} if options.drop_path else {}),
    )
    if task.name is Task.flexible:
        model = core.convert(
            model,
            task.frames,
            private=task.private.value,
            alter="sites" if task.alteration else "none",
        )
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=torch.channels_last)
        elif isinstance(module, nn.Conv3d) and module.groups == 1:
            module.to(memory_format=torch.channels_last_3d)
    return model


def prepare_model(config: Config, model: nn.Module) -> None:
    """Change how a network is trained, not what it computes, in place.

    Raises:
        ConfigError: it has no blocks to recompute, or nothing here can compile it.
    """
    try:
        if config.train.activation_checkpointing:
            checkpoint_blocks(model)
        if config.train.compile:
            compile_network(model)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"{config.model.name}: {error}") from error


def check_precision(config: Config, model: nn.Module, device: torch.device) -> None:
    """Refuse what would train on wrong gradients.

    Raises:
        ConfigError: bf16 or fp16 of 3-D convolutions on a CPU. torch 2.15's kernel (oneDNN's) for
            the weights' gradient reads memory that nobody wrote, with few frames or a stride over
            time; values up to 1e38 were seen.
    """
    half = config.train.precision is not Precision.fp32
    if half and device.type == "cpu" and any(isinstance(m, nn.Conv3d) for m in model.modules()):
        raise ConfigError(
            f"train.precision={config.train.precision.value} on a CPU gives wrong gradients for "
            f"the 3-D convolutions of {config.model.name}; use train.precision=fp32"
        )


def build_task(config: Config, model: nn.Module) -> nn.Module:
    """The model with its loss."""
    task = config.task
    if task.name is Task.plain:
        return PlainTask(model, task.frames[0])
    return FlexibleTask(
        model,
        tuple(task.frames),
        distill_weight=task.distill_weight,
        small_views=task.small_views.value,
    )


def build_optimiser(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """Optimiser over parameter groups that carry an ``lr_scale``."""
    options = config.optim
    make = optim.tsm_groups if options.groups is Groups.tsm else optim.standard_groups
    groups = optim.decay_layers(make(model, options.weight_decay), model, options.layer_decay)
    if options.name is Optimiser.adamw:
        return torch.optim.AdamW(groups, lr=options.lr)
    return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum)


def learning_rate_of(config: Config) -> float:
    """The learning rate of a config for its batch, at the top of the schedule."""
    options = config.optim
    return optim.scaled_lr(options.lr, config.train.batch_size, options.base_batch_size)


def learning_rate_at(config: Config, epoch: float) -> float:
    """The schedule of a config, at ``epoch`` epochs done."""
    options = config.optim
    factor = learning_rate_of(config) / options.lr
    return factor * optim.learning_rate(
        epoch,
        lr=options.lr,
        epochs=config.train.epochs,
        schedule=options.schedule.value,
        milestones=options.milestones,
        gamma=options.gamma,
        final_lr=options.final_lr,
        warmup_epochs=options.warmup_epochs,
    )


def describe(
    config: Config, videos: Videos, metrics: dict[int, dict[str, float]]
) -> dict[str, Any]:
    """What a checkpoint says of itself: plain values only."""
    flexible = config.task.name is Task.flexible
    return {
        "model": config.model.name,
        "num_classes": len(videos.classes),
        "trained_frames": sorted(config.task.frames) if flexible else None,
        "private": config.task.private.value if flexible else "none",
        "alter": "sites" if flexible and config.task.alteration else "none",
        "classes": list(videos.classes),
        "preprocessing": build_preprocessing(config.data).to_dict(),
        "metrics": {str(frames): dict(values) for frames, values in metrics.items()},
        "config": config_to_dict(config),
        "versions": versions(),
        "data": videos.fingerprint(),
    }
