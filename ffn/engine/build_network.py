"""Build the model, the task, the optimizer and the learning-rate schedule of a config."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from timm.layers import convert_sync_batchnorm
from torch import Tensor, nn

from ffn import core, zoo
from ffn.engine import freezing, optim
from ffn.engine.activation_checkpointing import checkpoint_blocks
from ffn.engine.config import ConfigError
from ffn.engine.distributed import World
from ffn.engine.options import Config
from ffn.engine.tasks import TASKS, Task
from ffn.label_kinds import find_labels

Start = tuple[zoo.Match, zoo.WeightRecord]


def conversion_of(config: Config) -> dict[str, Any] | None:
    """Arguments of :func:`ffn.convert` for the network of a config; None for a plain one.

    Raises:
        ConfigError: the task returns arguments that a checkpoint cannot store.
    """
    conversion = TASKS[config.task.name].conversion(config.task)
    if conversion is None:
        return None
    optional = "private", "alter", "interpolate"
    known = {"trained_frames"} <= conversion.keys() <= {"trained_frames", *optional}
    if not known or callable(conversion.get("private")):
        raise ConfigError(
            f"task {config.task.name}: conversion() returned {conversion}; a checkpoint stores "
            f"trained_frames, and optionally {', '.join(optional)}, without functions"
        )
    return conversion


def model_args(config: Config) -> dict[str, Any]:
    """Further arguments of :func:`ffn.create_model`, which checkpoints store."""
    causal = {"causal": True} if config.model.causal else {}
    return {**causal, **TASKS[config.task.name].model_args(config.task)}


def build_model(config: Config, num_classes: int, *, pretrained: bool = False) -> nn.Module:
    """The network, frame-flexible if the task is; convolutions in channels-last layout.

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
        **model_args(config),
    )
    if conversion is not None:
        try:
            model = core.convert(model, **conversion)
        except ValueError as error:
            raise ConfigError(
                f"{options.name} cannot be converted for task {config.task.name}; see "
                f"task.alteration and task.private: {error}"
            ) from error
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=torch.channels_last)
        elif isinstance(module, nn.Conv3d) and module.groups == 1:
            module.to(memory_format=torch.channels_last_3d)
    return model


def build_started_model(
    config: Config, num_classes: int, world: World, *, is_new: bool = True
) -> tuple[nn.Module, Start | None]:
    """The network of a run on its device, and the match with its start weights, if it has them.

    All processes get the same initialization. A run that is not new has a checkpoint, which would
    replace all weights.
    """
    torch.manual_seed(config.train.seed)
    pretrained = is_new and config.model.pretrained
    model = build_model(config, num_classes, pretrained=pretrained).to(world.device)
    start = None
    if is_new and config.model.weights is not None:
        largest = max(config.task.frames)
        start = zoo.load_start_weights(model, config.model.weights, frames=largest)
    if TASKS[config.task.name].reads_features and (not start or start[1].trained_frames is None):
        for module in model.model.backbone.modules():  # frozen, and never trained
            if isinstance(module, core.WeightAlteration):
                for parameter in module.parameters():
                    nn.init.zeros_(parameter)
    if config.train.sync_bn and world.size > 1:
        if world.device.type != "cuda":
            raise ConfigError("train.sync_bn needs CUDA devices; set train.sync_bn=false")
        model = convert_sync_batchnorm(model)
    return model, start


def prepare_for_training(config: Config, model: nn.Module, device: torch.device) -> None:
    """Set training mode, frozen parts, activation checkpointing and compilation, in place.

    Raises:
        ConfigError: the model has no blocks to freeze or to checkpoint, or cannot be compiled here.
    """
    half = config.train.precision != "fp32"
    if half and device.type == "cpu" and any(isinstance(m, nn.Conv3d) for m in model.modules()):
        raise ConfigError(
            f"train.precision is {config.train.precision}, in which torch's gradients of 3-D "
            f"convolutions are wrong on a CPU; train {config.model.name} there in fp32"
        )
    model.train()
    try:
        freezing.freeze(model, config.train.freeze)
        if config.train.activation_checkpointing:
            checkpoint_blocks(model)
        if config.train.compile and any(isinstance(m, nn.RNNBase) for m in model.modules()):
            raise ValueError("torch cannot compile its GRUs; train.compile=false or task.head=conv")
        if config.train.compile:
            views = TASKS[config.task.name].views(config.task).values()
            compile_network(model, len({length for view in views for length in view}))
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"{config.model.name}: {error}") from error


def build_task(config: Config, model: nn.Module, class_weights: Tensor | None = None) -> Task:
    """The model with its loss, in which classes may have weights (K,).

    Raises:
        ConfigError: the task cannot be trained with the options, or no parameter is trained.
    """
    task = TASKS[config.task.name].from_options(model, config.task)
    task.class_weights = class_weights
    task.labels = find_labels(config.data.labels)
    train = config.train
    unfit = train.views == "sequential" or train.compile or train.repeated_aug > 1
    if task.compares_views and (unfit or config.data.test_protocol != "1x1"):
        raise ConfigError(
            f"task {config.task.name} compares features of the views of different videos: use "
            "train.views=together, train.compile=false, train.repeated_aug=1 and "
            "data.test_protocol=1x1"
        )
    alike = train.repeated_aug > 1 or train.cutmix or train.activation_checkpointing
    if task.reads_features and (alike or config.optim.layer_decay != 1):
        raise ConfigError(
            f"task {config.task.name} reads the stored features of a frozen network: use "
            "train.repeated_aug=1, train.cutmix=0, train.activation_checkpointing=false and "
            "optim.layer_decay=1"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"train.freeze is {train.freeze}; no parameter is left to train")
    return task


def compile_network(model: nn.Module, lengths: int) -> None:
    """Compile a network for training: one graph per clip length, at the first clip of it.

    State-dict keys do not change. Deepcopies and extracted networks are not compiled, nor are
    losses and optimizers. Each batch size needs its own graph, too.

    Args:
        model: changed in place; frame-flexible or plain.
        lengths: number of clip lengths, by which torch's limit of graphs is raised; it holds for
            all networks of a class together.

    Raises:
        RuntimeError: in training, of torch: there is no C++ compiler for a CPU, the network cannot
            be one graph, or there are eight graphs for other lengths or sizes.
    """
    options = torch._dynamo.config
    limit = "recompile_limit" if hasattr(options, "recompile_limit") else "cache_size_limit"  # 2.6
    setattr(options, limit, getattr(options, limit) + lengths)
    flexible = isinstance(model, core.FrameFlexible)
    (model.model if flexible else model).compile(dynamic=False, fullgraph=True)


def build_optimizer(config: Config, task: Task) -> torch.optim.Optimizer:
    """Optimizer over parameter groups of a task and its model that carry an ``lr_scale``."""
    options, model = config.optim, task.model
    make = optim.tsm_groups if options.groups == "tsm" else optim.standard_groups
    groups = optim.decay_layers(make(model, options.weight_decay), model, options.layer_decay)
    own = [p for p in task.own_parameters().values() if p.requires_grad]
    for name, is_vector in (("task", False), ("task vectors", True)):
        if part := [p for p in own if (p.ndim <= 1) == is_vector]:
            decay = 0.0 if is_vector else options.weight_decay
            groups.append({"name": name, "params": part, "lr_scale": 1.0, "weight_decay": decay})
    if options.name == "adamw":
        return torch.optim.AdamW(groups, lr=options.lr, fused=True)
    sgd = torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum, fused=True)
    # torch's fused kernel needs the momentum of all parameters of a step or of none.
    for parameter in (p for group in groups for p in group["params"] if options.momentum):
        sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return sgd


def scaled_learning_rate(config: Config) -> float:
    """The learning rate of a config for its batch size, after warm-up.

    Linear scaling (Goyal et al. 2017, 1706.02677), verified for SGD with warm-up up to batches of
    8192 images.
    """
    lr, base = config.optim.lr, config.optim.base_batch_size
    return lr if base is None else lr * config.train.batch_size / base


def build_schedule(config: Config) -> Callable[[float], float]:
    """The learning rate as a function of the epochs done, with fraction."""
    options, lr = config.optim, scaled_learning_rate(config)
    return partial(
        optim.learning_rate,
        lr=lr,
        epochs=config.train.epochs,
        final_lr=options.final_lr * lr / options.lr,
        **options.model_dump(include={"schedule", "milestones", "gamma", "warmup_epochs"}),
    )


def use_deterministic_algorithms() -> None:
    """Restrict torch to deterministic algorithms, for this process.

    An operation without one raises torch's RuntimeError when it runs, e.g. the gradient of 3-D
    pooling on CUDA. cuBLAS needs its workspace setting before CUDA starts.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
