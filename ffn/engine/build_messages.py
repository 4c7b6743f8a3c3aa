"""The lines that a run prints at its start: network, videos, schedule, and warnings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ffn import zoo
from ffn.data import Splits, describe_splits, split_warnings
from ffn.engine import build_network
from ffn.engine.distributed import World
from ffn.engine.features import FILE
from ffn.engine.options import Config
from ffn.engine.tasks import Task
from ffn.files import home


def introduction(
    config: Config,
    splits: Splits,
    task: Task,
    start: build_network.Start | None,
    world: World,
    steps_per_epoch: int,
) -> list[str]:
    """Lines about the network, videos, start weights, batches and learning rate; warnings."""
    lines = [
        f"{config.model.name}, task {config.task.name}: {len(splits.train)} training and "
        f"{len(splits.val)} validation videos, {len(splits.classes)} classes"
    ]
    if getattr(task.model, "report", None) is not None:
        lines.append(str(task.model.report))
    lines += describe_splits(splits)
    if start is not None:
        lines.append(f"start weights {config.model.weights}: {start[0]}")
    lines.append(_schedule(config, world, steps_per_epoch))
    if config.train.freeze:
        parts, parameters = ", ".join(config.train.freeze), list(task.model.parameters())
        trained = sum(p.numel() for p in parameters if p.requires_grad)
        total = sum(p.numel() for p in parameters)
        lines.append(f"frozen: {parts}; {trained:,} of {total:,} parameters train")
    if task.reads_features:
        epochs = f"features of the first {config.task.variants} epochs"
        lines.append(f"frozen: backbone; {epochs} are computed once and kept in {home() / FILE}")
    if config.train.compile:
        lines.append("compiling: the first step of each frame count takes a minute or more")
    warnings = [*split_warnings(splits)]
    if config.data.flip == "random":
        warnings += flip_warnings(splits.classes)
    if start is not None:
        warnings += start_weight_warnings(config.model.weights, *start, splits.classes)
    return [*lines, *(f"warning: {text}" for text in warnings)]


def _schedule(config: Config, world: World, steps_per_epoch: int) -> str:
    train, optim = config.train, config.optim
    videos = f"{train.batch_size // train.repeated_aug} videos"
    videos += f" x {train.repeated_aug} samples" if train.repeated_aug > 1 else ""
    rate = f"{build_network.scaled_learning_rate(config):g}"
    if optim.base_batch_size is not None:
        rate += f" ({optim.lr:g} for {optim.base_batch_size})"
    micro = train.batch_size // (world.size * train.grad_accum_steps)
    return (
        f"{train.epochs} epochs of {steps_per_epoch} steps; {videos} per step = {world.size} "
        f"process(es) x {train.grad_accum_steps} micro-batch(es) x {micro}; learning rate {rate}, "
        f"{train.precision} on {world.device.type}"
    )


def flip_warnings(classes: Sequence[str]) -> Iterator[str]:
    """Class names with "left" or "right", for training with a random horizontal flip."""
    sided = [name for name in classes if re.search(r"(?i)(?<![a-z])(left|right)(?![a-z])", name)]
    if sided:
        yield (
            f"data.flip=random flips clips of {len(sided)} classes with left or right in their "
            f"names, e.g. {sided[0]!r}; data.flip=swap exchanges their labels, data.flip=none does "
            "not flip"
        )


def start_weight_warnings(
    name: str, match: zoo.Match, record: zoo.WeightRecord, classes: Sequence[str]
) -> Iterator[str]:
    """Start weights whose classifier is kept for other classes."""
    if match.classes is not None or record.classes is None:
        return  # a new classifier, or unknown names
    pairs = list(zip(record.classes, classes, strict=True))
    moved = [number for number, (there, here) in enumerate(pairs) if there != here]
    if moved:
        there, here = pairs[moved[0]]
        yield (
            f"the classes differ from those of {name}, whose classifier is kept: {len(moved)} of "
            f"{len(pairs)} differ, the first is class {moved[0]}, {here!r} here "
            f"and {there!r} there. data.classes=FILE sets the order"
        )
