"""Console messages of a run: start, intervals, validations, stop."""

from __future__ import annotations

import math
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


def resumed(folder: Path, step: int, steps_per_epoch: int, epochs: int) -> str:
    """Line about a run that is resumed from a checkpoint."""
    done, within = divmod(step, steps_per_epoch)
    more = f" and {within} step(s)" if within else ""
    return f"{folder}: resumed after {done} of {epochs} epochs{more}"


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


def interval(epoch: float, values: Mapping[str, float], seconds_left: float) -> str:
    """Text about the steps since the last one.

    Args:
        epoch: epochs done, with fraction.
        values: as :meth:`ffn.engine.logs.meter.Meter.interval` returns them.
        seconds_left: time that the remaining steps take at this speed, without validations.
    """
    return (
        f"epoch {epoch:.2f}  loss {values.get('loss', math.nan):.3f}  "
        f"{values['videos_per_s']:.0f} videos/s  data wait {values['data_wait']:.0%}  "
        f"{clock(seconds_left)} left"
    )


def clock(seconds: float) -> str:
    """A duration as hours, minutes and seconds.

    Example:
        >>> clock(62), clock(200_000)
        ('1:02', '55:33:20')
    """
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def validation_cells(
    epoch: int,
    metrics: Mapping[int, Mapping[str, float]],
    score: float,
    *,
    loss: float,
    lr: float,
    measure: str,
    is_best: bool,
) -> dict[str, str]:
    """A row of the table of validations: texts by the titles of the columns.

    Args:
        epoch: epochs done.
        metrics: measures by frame count.
        score: mean accuracy over the trained counts, in percent.
        loss: mean training loss since the last log line.
        lr: learning rate.
        measure: name of the accuracy: top1, or map with several labels per video.
        is_best: the score is the best so far.
    """
    title = {"top1": "top-1 %", "map": "mAP %"}[measure]
    first, *others = metrics
    accuracies = {f"{title}: {first}f": f"{metrics[first][measure]:.1f}"}
    accuracies |= {f"{frames}f": f"{metrics[frames][measure]:.1f}" for frames in others}
    mean = f"{score:.1f}{'*' if is_best else ' '}"
    values = {"epoch": f"{epoch}", "loss": f"{loss:.3f}", "lr": f"{lr:.2g}"}
    return {**values, **accuracies, "mean": mean}


def table_lines(cells: Mapping[str, str]) -> tuple[str, str]:
    """Header and row of a table; a column is as wide as its title, and at least 7 characters."""
    widths = {title: max(7, len(title) + 2) for title in cells}
    header = "".join(title.rjust(width) for title, width in widths.items())
    return header, "".join(cells[title].rjust(width) for title, width in widths.items())


def unreadable(title: str, reasons: Sequence[str], file: Path) -> str:
    """Lines about unreadable videos: a title, the first ten, and the file that lists all."""
    more = len(reasons) - 10
    listed = [*reasons[:10], *([f"... and {more} more, see {file}"] if more > 0 else [])]
    return "\n  ".join([title, *listed])
