"""The parts of a training run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch.utils.data import DataLoader

from ffn.engine.checkpointer import Checkpointer
from ffn.engine.distributed import World
from ffn.engine.logs.meter import Meter
from ffn.engine.logs.run_log import RunLog
from ffn.engine.train_step import TrainStep
from ffn.engine.validation import Validator


@dataclass
class Run:
    """A training run, as :func:`ffn.engine.build.build_run` makes it and the loop runs it.

    Attributes:
        folder: for all output.
        world: the processes.
        train_loader: micro-batches of this process.
        train_step: model, loss and optimizer.
        meter: metrics between log lines.
        validator: accuracy on the validation videos.
        checkpointer: saves and restores the run.
        learning_rate: function of the epochs done, with fraction.
        open_log: opens the log at a step, with the number of its lines to keep.
        introduction: console lines for a new run.
        settings: console lines about batches and learning rate, and warnings.
        epochs: passes over the training videos.
        steps_per_epoch: optimizer steps.
        validate_epochs: epochs between validations.
        patience: validations without a better score that end the run; 0 for no early end.
        save_steps: steps between checkpoints inside an epoch; 0 for none.
        log_interval: steps between log lines.
    """

    folder: Path
    world: World
    train_loader: DataLoader
    train_step: TrainStep
    meter: Meter
    validator: Validator
    checkpointer: Checkpointer
    learning_rate: Callable[[float], float]
    open_log: Callable[[int, int], RunLog]
    introduction: list[str]
    settings: list[str]
    epochs: int
    steps_per_epoch: int
    validate_epochs: int
    patience: int
    save_steps: int
    log_interval: int
