"""The training loop: resume; train an epoch, save, validate, save."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path

from ffn.data import VideoError
from ffn.engine.checkpointer import RunState
from ffn.engine.distributed import any_of, average_buffers
from ffn.engine.failures import explain_failures
from ffn.engine.logs import console
from ffn.engine.logs.run_log import RunLog
from ffn.engine.run import Run
from ffn.engine.signals import StoppedError, StopRequest


def train(run: Run) -> Path:
    """Train to the end, from the last checkpoint if any; return the path of the best network.

    Raises:
        StoppedError: a signal stopped the run after a checkpoint.
        FloatingPointError: too many bad steps in a row, or non-finite weights.
        VideoError: a video cannot be read and none is skipped, or no video of an epoch can be read.
        LoaderError: a loader worker hangs or has exited.
        LostProcessError: another process has ended.
        OutOfMemoryError: a batch does not fit.
    """
    loaders = (run.train_loader, run.validator.loader)
    with ExitStack() as stack:
        stop = stack.enter_context(StopRequest(verbose=run.world.is_main))
        stack.enter_context(
            explain_failures(run.world, *loaders, batch_size=run.train_loader.batch_size)
        )
        stack.enter_context(run.checkpointer.lock())
        state = run.checkpointer.restore()
        was_finished = is_finished(run, state)
        if not was_finished:
            run.checkpointer.write_config()
        log = stack.enter_context(run.open_log(state.step, was_finished))
        for line in start_lines(run, state):
            log.print(line)

        while not is_finished(run, state):
            if not state.validation_pending:
                train_epoch(run, state, log, stop)
                state.epoch += 1
                average_buffers(run.train_step.model, run.world)
                if run.train_step.ema is not None:
                    average_buffers(run.train_step.network, run.world)
                is_last = state.epoch == run.epochs
                state.validation_pending = is_last or state.epoch % run.validate_epochs == 0
                run.checkpointer.save(state)
            if state.validation_pending:
                stopped = f"stopped and saved at step {state.step}"
                with stop.interrupting(stopped), log.status("validating"):
                    validate(run, state, log)
                state.validation_pending = False
                run.checkpointer.save(state)
        if has_lost_patience(run, state) and not was_finished:
            log.print(console.stopped_early(state.epoch, run.epochs, state.since_best))
        run.checkpointer.finish(state)
    return run.folder / "best.pt"


def is_finished(run: Run, state: RunState) -> bool:
    """Whether nothing is left to do: all epochs are done, or the run has ended early."""
    done = state.epoch >= run.epochs or has_lost_patience(run, state)
    return done and not state.validation_pending


def has_lost_patience(run: Run, state: RunState) -> bool:
    """Whether ``run.patience`` validations in a row were not better than the best one."""
    return 0 < run.patience <= state.since_best and state.epoch < run.epochs


def train_epoch(run: Run, state: RunState, log: RunLog, stop: StopRequest) -> None:
    """Train on the videos that remain in an epoch."""
    step, meter = run.train_step, run.meter
    first = state.step - state.epoch * run.steps_per_epoch
    run.train_loader.sampler.set_epoch(state.epoch, skip_batches=first * step.grad_accum_steps)
    meter.restart_clock()
    batches = meter.timed(iter(run.train_loader))
    used, text = 0, ""

    for _ in range(first, run.steps_per_epoch):
        lr = run.learning_rate(state.step / run.steps_per_epoch)
        result = step.step(batches, number=state.step, lr=lr, stop=lambda: stop.requested)
        used += sum(len(output["label"]) for output in result.outputs)
        state.step += 1
        state.metrics = {}  # they belong to an earlier network
        meter.add(result)
        if result.warning:
            log.print(result.warning)
        if is_logged(state.step, run.log_interval, run.steps_per_epoch):
            epoch = state.step / run.steps_per_epoch
            left = (run.epochs * run.steps_per_epoch - state.step) * meter.seconds_per_step()
            run.last = meter.interval(lr=lr, grad_norm=result.grad_norm)
            text = console.interval(epoch, run.last, left)
            log.record("train", state.step, {"epoch": epoch, **run.last})
            meter.restart()
        log.progress(state.step, text)
        if result.stop or (run.save_steps and state.step % run.save_steps == 0):
            run.checkpointer.save(state)
        if result.stop:
            raise StoppedError(f"stopped and saved at step {state.step}")

    skipped = meter.take_skipped()
    if skipped and first == 0 and not any_of([used > 0], run.world)[0]:
        raise VideoError(
            f"no training video of epoch {state.epoch + 1} can be read; check data.root, and the "
            f"videos with ffn check_data. The first: {skipped[0]}"
        )
    title = f"epoch {state.epoch + 1}: {len(skipped)} unreadable videos skipped"
    log.unreadable(title, skipped)
    log.record("train", state.step, {"skipped": len(skipped)})


def is_logged(step: int, interval: int, steps_per_epoch: int) -> bool:
    """Whether a step ends an interval: every ``interval``, and every epoch that is shorter."""
    return step % interval == 0 or (steps_per_epoch < interval and step % steps_per_epoch == 0)


def validate(run: Run, state: RunState, log: RunLog) -> None:
    """Measure the accuracy per frame count; save the network if it is the best so far."""
    for message in run.validator.update_statistics(state.epoch):
        log.print(f"exact BatchNorm statistics: {message}")
    state.metrics, failed = run.validator.evaluate()
    log.unreadable(f"{len(failed)} unreadable validation videos count as wrong", failed)
    score, measure = run.validator.score(state.metrics), run.validator.measure
    is_best = score > state.best
    state.since_best = 0 if is_best else state.since_best + 1
    log.validation(
        console.validation_cells(
            state.epoch,
            state.metrics,
            score,
            loss=run.last.get("loss", math.nan),
            lr=run.last.get("lr", math.nan),
            measure=measure,
            is_best=is_best,
        )
    )
    accuracies = {f"{measure}/{frames}": found[measure] for frames, found in state.metrics.items()}
    waited = {"since_best": state.since_best} if run.patience else {}
    values = {"epoch": state.epoch, **accuracies, "mean": score, "failed": len(failed), **waited}
    log.record("val", state.step, values)
    if is_best:
        state.best = score
        run.checkpointer.save_best(state)


def start_lines(run: Run, state: RunState) -> list[str]:
    """Console lines at the start: a new, a resumed or a finished run."""
    notes = run.checkpointer.notes
    if is_finished(run, state):
        return [*notes, console.finished(run.folder, state.epoch, run.epochs)]
    if not state.step:
        return [*notes, *run.introduction, *run.settings]
    resumed = console.resumed(run.folder, state.step, run.steps_per_epoch, run.epochs)
    return [*notes, resumed, *run.settings]
