"""The training loop: resume; train an epoch, save, validate, save."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from ffn.engine.checkpointer import Checkpointer, RunState
from ffn.engine.checkpoints import locked
from ffn.engine.distributed import World, average_buffers
from ffn.engine.meter import Meter
from ffn.engine.run_log import RunLog
from ffn.engine.signals import StoppedError, StopRequest
from ffn.engine.train_step import StepResult, TrainStep
from ffn.evaluation import ERRORS, TITLES


@dataclass
class Run:
    """The parts of a training run, as :func:`ffn.engine.build.build_run` makes them.

    Attributes:
        folder: for all output.
        world: the processes.
        train_loader: micro-batches of this process.
        val_loader: validation batches.
        train_step: model, loss and optimizer.
        meter: metrics between log lines.
        checkpointer: saves and restores the run.
        learning_rate: function of the epochs done, with fraction.
        open_log: opens the log at a step, with the number of its lines to keep.
        introduction: console lines at the start.
        trained_frames: counts whose mean accuracy on the validation videos is the score.
        measure: name of this accuracy: top1, map with several labels per video, or the task's.
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
    val_loader: DataLoader
    train_step: TrainStep
    meter: Meter
    checkpointer: Checkpointer
    learning_rate: Callable[[float], float]
    open_log: Callable[..., RunLog]
    introduction: list[str]
    trained_frames: Sequence[int]
    measure: str
    epochs: int
    steps_per_epoch: int
    validate_epochs: int
    patience: int
    save_steps: int
    log_interval: int


def train(run: Run) -> Path:
    """Train to the end, from the last checkpoint if any; return the path of the best network.

    Raises:
        StoppedError: a signal stopped the run after a checkpoint.
        FloatingPointError: too many bad steps in a row, or non-finite weights.
        VideoError: a video cannot be read and none is skipped, or too many steps have none.
    """
    with ExitStack() as stack:
        stop = stack.enter_context(StopRequest(verbose=run.world.is_main))
        stack.enter_context(locked(run.folder, run.world))
        state = run.checkpointer.restore()
        if is_finished(run, state):
            if run.world.is_main:
                print(
                    f"{run.folder}: finished, {state.epoch} of {run.epochs} epochs are done. To "
                    "train further, raise train.epochs or train.patience"
                )
            return run.folder / "best.pt"
        log = stack.enter_context(run.open_log(first_step=state.step, lines=state.log_lines))
        log.print(*start_lines(run, state))
        batches: Iterator[dict[str, Any]] | None = None  # of the epoch

        while not is_finished(run, state):
            if state.validates:
                with stop.interrupting(stopped_at(state)), log.status("validating"):
                    validate(run, state, log)
                state.validates = False
                save(run, state, log)
                continue
            batches = batches or start_epoch(run, state)
            lr = run.learning_rate(state.step / run.steps_per_epoch)
            result = run.train_step.step(
                batches, number=state.step, lr=lr, stop=lambda: stop.requested
            )
            finish_step(run, state, log, result, lr)
            ends_epoch = state.step % run.steps_per_epoch == 0
            if ends_epoch:
                finish_epoch(run, state, log)
                batches = None
            if ends_epoch or result.stop or (run.save_steps and state.step % run.save_steps == 0):
                save(run, state, log)
            if result.stop:
                raise stopped_at(state)
    return run.folder / "best.pt"


def stopped_at(state: RunState) -> StoppedError:
    """The error of a run that a signal stops after it was saved."""
    return StoppedError(f"stopped and saved at step {state.step}; the same command resumes the run")


def start_lines(run: Run, state: RunState) -> list[str]:
    """Console lines at the start of a new or a resumed run."""
    lines = [*run.checkpointer.notes, *run.introduction]
    if state.step:
        done, within = divmod(state.step, run.steps_per_epoch)
        position = f"{done} of {run.epochs} epochs and {within} step(s)"
        lines.append(f"{run.folder}: resumed after {position}")
    return lines


def is_finished(run: Run, state: RunState) -> bool:
    """Whether nothing is left to do: all epochs are done, or the run has ended early."""
    return not state.validates and (state.epoch >= run.epochs or has_lost_patience(run, state))


def has_lost_patience(run: Run, state: RunState) -> bool:
    """Whether ``run.patience`` validations in a row were not better than the best one."""
    return 0 < run.patience <= state.since_best


def start_epoch(run: Run, state: RunState) -> Iterator[dict[str, Any]]:
    """The micro-batches that remain in an epoch."""
    done = state.step - state.epoch * run.steps_per_epoch
    run.train_loader.sampler.set_epoch(
        state.epoch, skip_batches=done * run.train_step.grad_accum_steps
    )
    run.meter.restart_clock()
    return run.meter.timed(iter(run.train_loader))


def finish_step(run: Run, state: RunState, log: RunLog, result: StepResult, lr: float) -> None:
    """Count a step; record the metrics at the end of an interval."""
    state.step += 1
    state.metrics = {}  # they belong to an earlier network
    meter, text = run.meter, ""
    meter.add(result)
    if result.warning:
        log.print(result.warning)
    if state.step % min(run.log_interval, run.steps_per_epoch) == 0:
        epoch = state.step / run.steps_per_epoch
        left = (run.epochs * run.steps_per_epoch - state.step) * meter.seconds_per_step()
        values = meter.interval(lr=lr, grad_norm=result.grad_norm)
        text = (
            f"epoch {epoch:.2f}  loss {values.get('loss', math.nan):.3f}  "
            f"{values['videos_per_s']:.0f} videos/s  data wait {values['data_wait']:.0%}  "
            f"{timedelta(seconds=round(left))} left"
        )
        log.record("train", state.step, {"epoch": epoch, **values})
        meter.restart()
    log.progress(state.step, text)


def finish_epoch(run: Run, state: RunState, log: RunLog) -> None:
    """Count an epoch, average the running statistics, and record unreadable videos."""
    skipped = run.meter.take_skipped()
    state.epoch += 1
    state.validates = state.epoch == run.epochs or state.epoch % run.validate_epochs == 0
    log.unreadable(f"epoch {state.epoch}: {len(skipped)} unreadable videos skipped", skipped)
    log.record("train", state.step, {"skipped": len(skipped)})
    for module in dict.fromkeys((run.train_step.model, run.train_step.network)):
        average_buffers(module, run.world)  # in the same order on all processes


def evaluate(run: Run) -> tuple[dict[int, dict[str, float]], tuple[str, ...]]:
    """Measures of the network at every tested frame count, by count; unreadable videos.

    Raises:
        FloatingPointError: logits are not finite.
        VideoError: no video can be read.
    """
    step = run.train_step
    try:
        with torch.compiler.set_stance("force_eager"):  # else a graph for each length and mode
            return step.task.evaluate(
                step.network,
                run.val_loader,
                precision=step.precision,
                batch_size=run.train_loader.batch_size,
            )
    except FloatingPointError as error:
        raise FloatingPointError(f"{error}. {step.advice}") from error


def validate(run: Run, state: RunState, log: RunLog) -> None:
    """Measure the accuracy per frame count; save the network if it is the best so far (*)."""
    state.metrics, failed = evaluate(run)
    log.unreadable(f"{len(failed)} unreadable validation videos count as wrong", failed)
    measure = run.measure
    score = sum(state.metrics[t][measure] for t in run.trained_frames) / len(run.trained_frames)
    rank = -score if measure in ERRORS else score
    is_best = rank > state.best
    state.since_best = 0 if is_best else state.since_best + 1
    title = TITLES.get(measure, measure)
    shown = "  ".join(f"{frames}f {one[measure]:5.1f}" for frames, one in state.metrics.items())
    best = "*" if is_best else ""
    log.print(f"epoch {state.epoch:3}  {title} %  {shown}  mean {score:5.1f}{best}")
    accuracies = {f"{measure}/{frames}": found[measure] for frames, found in state.metrics.items()}
    values = {"epoch": state.epoch, **accuracies, "mean": score, "failed": len(failed)}
    log.record("val", state.step, {**values, "since_best": state.since_best})
    if is_best:
        state.best = rank
        run.checkpointer.save_best(state)
    if has_lost_patience(run, state) and state.epoch < run.epochs:
        log.print(f"the run ends after {state.epoch} of {run.epochs} epochs (train.patience)")


def save(run: Run, state: RunState, log: RunLog) -> None:
    """Write a checkpoint of the run, with its position in the log."""
    state.log_lines = log.lines
    run.checkpointer.save(state)
