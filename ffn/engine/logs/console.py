"""Console messages of a run: start, intervals, validations, stop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path


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
