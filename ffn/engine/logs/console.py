"""Console messages of a run: start, intervals, validations, stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor


def new_run(
    model: str,
    task: str,
    *,
    train_videos: int,
    val_videos: int,
    classes: int,
    report: object = None,
) -> list[str]:
    """Lines about a new run.

    Args:
        model: its name.
        task: its name.
        train_videos: number of training videos.
        val_videos: number of validation videos.
        classes: number of classes.
        report: of the model's conversion; printable.
    """
    lines = [
        f"{model}, task {task}: {train_videos} training and {val_videos} validation videos, "
        f"{classes} classes"
    ]
    return lines if report is None else [*lines, str(report)]


def finished(folder: Path, done: int, epochs: int) -> str:
    """Line about a run that has no epochs left, or has ended early."""
    options = "train.epochs" if done == epochs else "train.patience"
    return (
        f"{folder}: finished, {done} of {epochs} epochs are done. To train further, raise "
        f"{options}, or choose another log.output and model.weights={folder / 'best.pt'}"
    )


def stopped_early(done: int, epochs: int, validations: int) -> str:
    """Line at the early end of a run."""
    return (
        f"the last {validations} validation(s) were not better than the best one "
        f"(train.patience): the run ends after {done} of {epochs} epochs"
    )


def resumed(
    folder: Path,
    *,
    step: int,
    steps_per_epoch: int,
    epochs: int,
    writers: int,
    processes: int,
) -> list[str]:
    """Lines about a run that is resumed from a checkpoint.

    Args:
        folder: of the run.
        step: optimizer steps done.
        steps_per_epoch: optimizer steps.
        epochs: passes over the training videos.
        writers: processes that wrote the checkpoint.
        processes: processes now.
    """
    done, within = divmod(step, steps_per_epoch)
    more = f" and {within} step(s)" if within else ""
    lines = [f"{folder}: resumed after {done} of {epochs} epochs{more}"]
    if writers != processes:
        lines.append(
            f"the checkpoint was written by {writers} process(es), now there are {processes}: "
            "running statistics are averaged"
        )
    return lines


def schedule(
    *,
    epochs: int,
    steps_per_epoch: int,
    batch_size: int,
    repeated_aug: int,
    processes: int,
    grad_accum_steps: int,
    lr: float,
    base: tuple[float, int] | None,
    precision: str,
    device: str,
) -> str:
    """Line about the length of a run, its batches and its learning rate.

    Args:
        epochs: passes over the training videos.
        steps_per_epoch: optimizer steps.
        batch_size: samples per step.
        repeated_aug: samples of each video in a batch.
        processes: number of them.
        grad_accum_steps: micro-batches per step.
        lr: scaled learning rate.
        base: learning rate and batch size that it was scaled from; None without scaling.
        precision: of the forward passes.
        device: its type.
    """
    videos = f"{batch_size // repeated_aug} videos"
    videos += f" x {repeated_aug} samples" if repeated_aug > 1 else ""
    rate = f"{lr:g}" if base is None else f"{lr:g} ({base[0]:g} for {base[1]})"
    micro = batch_size // (processes * grad_accum_steps)
    return (
        f"{epochs} epochs of {steps_per_epoch} steps; {videos} per step = {processes} process(es) "
        f"x {grad_accum_steps} micro-batch(es) x {micro}; learning rate {rate}, {precision} on "
        f"{device}"
    )


def frozen(parts: Sequence[str], *, trained: int, total: int) -> str:
    """Line about a partly frozen network.

    Args:
        parts: names of the frozen modules and parameters.
        trained: number of trained parameters.
        total: number of all parameters.
    """
    shown = ", ".join(parts[:10]) + (f" and {len(parts) - 10} more" if len(parts) > 10 else "")
    return f"frozen: {shown}; {trained:,} of {total:,} parameters train"


def class_weights(weights: Tensor, classes: Sequence[str], note: str) -> str:
    """Line about the weights of the classes (K,) in the loss, with a note on their meaning."""
    low, high = int(weights.argmin()), int(weights.argmax())
    return (
        f"class weights: {weights[low]:.3g} ({classes[low]}) to {weights[high]:.3g} "
        f"({classes[high]}); {note}"
    )


def frame_counts(views: Mapping[int, Mapping[int, float]]) -> str:
    """Line about views whose number of frames changes from step to step.

    Args:
        views: for each view the possible numbers of frames with their probabilities.
    """
    drawn = ", ".join(
        f"{min(numbers)}-{max(numbers)}" if len(numbers) > 1 else f"{min(numbers)}"
        for _, numbers in sorted(views.items())
    )
    mean = sum(n * p for numbers in views.values() for n, p in numbers.items())
    return f"frames drawn for each step from {drawn}: {mean:.1f} per video on average"


def interval(epoch: float, step: int, values: Mapping[str, float], seconds_left: float) -> str:
    """Line about the steps since the last one.

    Args:
        epoch: epochs done, with fraction.
        step: optimizer steps done.
        values: as :meth:`ffn.engine.logs.meter.Meter.interval` returns them.
        seconds_left: time that the remaining steps take at this speed, without validations.
    """
    shown = "  ".join(
        f"{key} {value:.3f}" for key, value in values.items() if "/" in key or key == "loss"
    )
    return (
        f"epoch {epoch:6.2f}  step {step}  lr {values['lr']:.2e}  {shown}  "
        f"grad {values['grad_norm']:.2f}  {speed(values['videos_per_s'], values['data_wait'])}"
        f"{f', {duration(seconds_left)} left' if seconds_left else ''}"
    )


def duration(seconds: float) -> str:
    """A time to come, rounded for reading.

    Example:
        >>> duration(40), duration(3605), duration(200_000)
        ('40 s', '1 h 0 min', '2 d 7 h')
    """
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 2:
        return f"{seconds:.0f} s"
    if hours < 1:
        return f"{minutes:.0f} min"
    if hours < 48:
        return f"{int(hours)} h {int(minutes) % 60} min"
    return f"{int(hours) // 24} d {int(hours) % 24} h"


def speed(videos_per_s: float, data_wait: float) -> str:
    """Videos per second, and the share of time spent waiting for data."""
    return f"{videos_per_s:.0f} videos/s, data wait {data_wait:.0%}"


def validation(
    epoch: int,
    metrics: Mapping[int, Mapping[str, float]],
    score: float,
    videos: int,
    *,
    measure: str = "top1",
) -> str:
    """Line with the accuracy at every tested frame count.

    Args:
        epoch: epochs done.
        metrics: measures by frame count.
        score: mean accuracy over the trained counts, in percent; of all videos.
        videos: number of validation videos.
        measure: name of the accuracy: top1, or map with several labels per video.
    """
    shown = "  ".join(f"{frames}f {values[measure]:.1f}" for frames, values in metrics.items())
    failed = next(iter(metrics.values()))["failed"]
    note = ""
    if failed and measure == "map":
        note = f"  (the labels of {failed} unreadable videos count as not found)"
    elif failed:
        readable = videos - failed
        mean = f"{score * videos / readable:.2f}" if readable else "none"
        note = f"  ({failed} unreadable videos count as wrong; mean without them {mean})"
    title = {"top1": "top-1", "map": "mAP"}[measure]
    return f"epoch {epoch:>3} validation {title} %: {shown}  mean {score:.2f}{note}"


def unreadable(title: str, reasons: Sequence[str], file: Path) -> str:
    """Lines about unreadable videos: a title, the first ten, and the file that lists all."""
    more = len(reasons) - 10
    listed = [*reasons[:10], *([f"... and {more} more, see {file}"] if more > 0 else [])]
    return "\n  ".join([title, *listed])


def stopped(step: int, saved_step: int) -> str:
    """Line about a run that a signal stopped.

    Args:
        step: optimizer steps done.
        saved_step: step of the last checkpoint.
    """
    if saved_step == step:
        return f"stopped and saved at step {step}"
    return (
        f"stopped at step {step} after non-finite steps: the last checkpoint is of step "
        f"{saved_step}"
    )
