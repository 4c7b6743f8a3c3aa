"""What a run says in sentences: how it starts, and what a validation found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ffn.engine import build, recipe
from ffn.engine.signals import SAVED

if TYPE_CHECKING:
    from ffn.engine.loop import Trainer


def start(trainer: Trainer) -> Iterator[str]:
    """Lines that say what is about to be trained, or continued, and what looks wrong with it."""
    config, train = trainer.config, trainer.config.train
    yield from trainer.notes
    if trainer.done:
        yield (
            f"{trainer.folder}: finished already, {trainer.epoch} of {train.epochs} epochs done; "
            f"to train on, choose another log.output and model.weights={trainer.folder / 'best.pt'}"
        )
        return
    if trainer.step:
        epochs, within = divmod(trainer.step, trainer.steps_per_epoch)
        more = f" and {within} step(s)" if within else ""
        yield f"{trainer.folder}: continued, {epochs} of {train.epochs} epochs{more} done"
    else:
        yield (
            f"{config.model.name}, {config.task.name.value}: {len(trainer.videos.train)} training "
            f"and {len(trainer.videos.val)} validation videos, {len(trainer.videos.classes)} "
            "classes"
        )
        report = getattr(trainer.model, "report", None)
        if report is not None:
            yield str(report)
        if trainer.started_from is not None:
            yield f"start from {config.model.weights}: {trainer.started_from[0]}"
    yield _batch(trainer)
    if train.compile:
        yield "compiling: the first step of each frame count takes a minute or more"
    for text in _doubts(trainer):
        yield f"warning: {text}"


def stopped(trainer: Trainer) -> str:
    """What a signal left: the step that was saved."""
    if trainer.saved == trainer.step:
        return f"{SAVED} at step {trainer.step}"
    kept = "there is no checkpoint" if trainer.saved is None else f"saved is step {trainer.saved}"
    return f"stopped at step {trainer.step}, after steps that were not finite: {kept}"


def validation(trainer: Trainer, score: float) -> str:
    """A line with the accuracy at every tested count.

    Args:
        trainer: its `metrics` are those of the validation.
        score: mean top-1 over the trained counts, in percent of all videos.
    """
    metrics = trainer.metrics
    shown = "  ".join(f"{t}f {m['top1']:.1f}" for t, m in metrics.items())
    failed = next(iter(metrics.values()))["failed"]
    note = ""
    if failed:
        readable = len(trainer.videos.val) - failed
        mean = f"{score * len(trainer.videos.val) / readable:.2f}" if readable else "none"
        note = f"  ({failed} unreadable videos counted as wrong; mean of the others {mean})"
    return f"epoch {trainer.epoch:>3} validation top-1 %: {shown}  mean {score:.2f}{note}"


def _batch(trainer: Trainer) -> str:
    config, train, optim = trainer.config, trainer.config.train, trainer.config.optim
    videos = f"{train.batch_size // train.repeated_aug} videos"
    videos += f" x {train.repeated_aug} draws" if train.repeated_aug > 1 else ""
    rate = f"{build.learning_rate_of(config):g}"
    if optim.base_batch_size is not None:
        rate += f" ({optim.lr:g} for {optim.base_batch_size})"
    return (
        f"{train.epochs} epochs of {trainer.steps_per_epoch} steps; {videos} "
        f"per step = {trainer.world.size} process(es) x {train.grad_accum_steps} micro-batch(es) x "
        f"{trainer.train_loader.batch_size}; learning rate {rate}, "
        f"{train.precision.value} on {trainer.world.device.type}"
    )


def _doubts(trainer: Trainer) -> list[str]:
    train, start = trainer.config.train, None
    if trainer.started_from is not None:
        match, record = trainer.started_from
        start = recipe.Start(
            trainer.config.model.weights, match.share, record.classes, match.classes is not None
        )
    together = trainer.world.size if train.sync_bn else 1
    return recipe.warnings(
        trainer.config,
        trainer.model,
        trainer.videos.classes,
        clips_per_norm=together * trainer.train_loader.batch_size,
        start=start,
    )
