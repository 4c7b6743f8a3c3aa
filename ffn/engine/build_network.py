"""Build the model, the task, the optimiser and the learning-rate schedule of a config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ffn import core, zoo
from ffn.engine import optim
from ffn.engine.activation_checkpointing import checkpoint_blocks
from ffn.engine.compile import compile_network
from ffn.engine.config import ConfigError
from ffn.engine.options import Config, Groups, Optimiser, Precision
from ffn.engine.tasks import TASKS, FlexibleOptions, Task


def conversion_of(config: Config) -> dict[str, Any] | None:
    """Arguments of :func:`ffn.convert` for the network of a config; None for a plain one.

    Raises:
        ConfigError: the task returns arguments that a checkpoint cannot store.
    """
    conversion = TASKS[config.task.name].conversion(config.task)
    if conversion is None:
        return None
    shown = f"task {config.task.name}: conversion() returned {conversion}; "
    optional = "private", "alter", "interpolate"
    if not {"trained_frames"} <= conversion.keys() <= {"trained_frames", *optional}:
        raise ConfigError(f"{shown}expected trained_frames, and optionally {', '.join(optional)}")
    if callable(conversion.get("private")):
        raise ConfigError(
            f'{shown}private must be "norms", "none" or "all": a checkpoint stores no function'
        )
    return conversion


def build_model(config: Config, num_classes: int, *, pretrained: bool = False) -> nn.Module:
    """The network, frame-flexible if the task is; convolutions in channels-last layout.

    Args:
        config: the options.
        num_classes: K.
        pretrained: with published weights.

    Raises:
        ConfigError: the network cannot be converted for the task.
    """
    options, conversion = config.model, conversion_of(config)
    model = zoo.create_model(
        options.name,
        num_classes=num_classes,
        pretrained=pretrained,
        dropout=options.dropout,
        **({"drop_path": options.drop_path} if options.drop_path else {}),
    )
    if conversion is not None:
        model = _convert(config, model, conversion)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=torch.channels_last)
        elif isinstance(module, nn.Conv3d) and module.groups == 1:
            module.to(memory_format=torch.channels_last_3d)
    return model


def _convert(config: Config, model: nn.Module, conversion: dict[str, Any]) -> nn.Module:
    try:
        return core.convert(model, **conversion)
    except ValueError as error:
        flexible = isinstance(config.task, FlexibleOptions)
        options = " (options task.alteration and task.private)" if flexible else ""
        raise ConfigError(
            f"{config.model.name} cannot be converted for task {config.task.name}{options}: {error}"
        ) from error


def prepare_for_training(config: Config, model: nn.Module, device: torch.device) -> None:
    """Set training mode, frozen norms, activation checkpointing and compilation, in place.

    Raises:
        ConfigError: the model has no blocks to checkpoint, cannot be compiled here, or would train
            on wrong gradients.
    """
    _check_precision(config, model, device)
    model.train()
    if config.train.freeze_bn:
        for norm in model.modules():
            if isinstance(norm, core.NORMS):
                norm.eval().requires_grad_(False)
    try:
        if config.train.activation_checkpointing:
            checkpoint_blocks(model)
        if config.train.compile:
            compile_network(model, lengths_change=lengths_change(config))
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"{config.model.name}: {error}") from error


def build_task(config: Config, model: nn.Module) -> Task:
    """The model with its loss.

    Raises:
        ConfigError: the task has trained parameters of its own.
    """
    task = TASKS[config.task.name].from_options(model, config.task)
    known = {id(parameter) for parameter in model.parameters()}
    own = [n for n, p in task.named_parameters() if p.requires_grad and id(p) not in known]
    if own:
        raise ConfigError(
            f"task {config.task.name} has the parameters {', '.join(own)} outside of its model; "
            "only those of the model are optimised and saved. Move them into the model, or call "
            "requires_grad_(False)"
        )
    return task


def lengths_change(config: Config) -> bool:
    """Whether the number of frames of a view changes from step to step."""
    views = TASKS[config.task.name].views(config.task)
    return any(len(numbers) > 1 for numbers in views.values())


def build_optimiser(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """Optimiser over parameter groups that carry an ``lr_scale``."""
    options = config.optim
    make = optim.tsm_groups if options.groups is Groups.tsm else optim.standard_groups
    groups = optim.decay_layers(make(model, options.weight_decay), model, options.layer_decay)
    if options.name is Optimiser.adamw:
        return torch.optim.AdamW(groups, lr=options.lr)
    return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum)


def scaled_learning_rate(config: Config) -> float:
    """The learning rate of a config for its batch size, after warm-up."""
    options = config.optim
    return optim.scaled_lr(options.lr, config.train.batch_size, options.base_batch_size)


def build_schedule(config: Config) -> Callable[[float], float]:
    """The learning rate as a function of the epochs done, with fraction."""
    options = config.optim
    factor = scaled_learning_rate(config) / options.lr

    def learning_rate(epoch: float) -> float:
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

    return learning_rate


def _check_precision(config: Config, model: nn.Module, device: torch.device) -> None:
    """Refuse half-precision training of 3-D convolutions on a CPU.

    With few frames or a stride over time, the kernel for their weight gradients (oneDNN, torch
    2.15) reads uninitialised memory; values up to 1e38 were measured.
    """
    half = config.train.precision is not Precision.fp32
    if half and device.type == "cpu" and any(isinstance(m, nn.Conv3d) for m in model.modules()):
        raise ConfigError(
            f"train.precision={config.train.precision.value} on a CPU gives wrong gradients for "
            f"the 3-D convolutions of {config.model.name}; use train.precision=fp32"
        )
