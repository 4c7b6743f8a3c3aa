"""Writes a run's checkpoints, and only good ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from ffn.engine import build
from ffn.engine.distributed import any_of, on_main
from ffn.engine.guards import not_finite
from ffn.engine.step import advice

if TYPE_CHECKING:
    from ffn.engine.loop import Trainer


def save(trainer: Trainer) -> None:
    """Write a checkpoint to continue from; all processes call it, the main one writes.

    Several bad steps in a row may mean that the weights are ruined, finite as they are: the
    checkpoint from before stays then.

    Raises:
        FloatingPointError: weights or statistics are not finite.
        CheckpointError: it cannot be written; the one before stays.
    """
    if trainer.stepper.guard.in_a_row > 1 and trainer.epoch < trainer.config.train.epochs:
        return
    content = _network(trainer)
    content["training"] = trainer.stepper.state() | {
        "meter": trainer.meter.state(),
        "epoch": trainer.epoch,
        "step": trainer.step,
        "validates": trainer.validates,
        "best": trainer.best,
    }
    _check_finite(trainer, content["training"].get("weights", {}))
    on_main(lambda: trainer.checkpoints.save(content, trainer.step) and None, trainer.world)
    trainer.saved = trainer.step


def save_best(trainer: Trainer) -> None:
    """Write the network as the best one. Arguments and errors of :func:`save`."""
    content = _network(trainer)
    on_main(lambda: trainer.checkpoints.save_best(content) and None, trainer.world)


def _network(trainer: Trainer) -> dict[str, Any]:
    """What a checkpoint holds of the network itself."""
    state = trainer.stepper.network.state_dict()
    _check_finite(trainer, state)
    meta = build.describe(trainer.config, trainer.videos, trainer.metrics)
    return {"model": state, "meta": meta}


def _check_finite(trainer: Trainer, state: dict[str, Tensor]) -> None:
    wrong = not_finite(state)
    if any_of([bool(wrong)], trainer.world)[0]:
        raise FloatingPointError(
            f"weights or statistics are not finite at step {trainer.step} "
            f"({', '.join(wrong[:3])}): they are not saved, and what was saved before stays. "
            f"{advice(trainer.config)}"
        )
