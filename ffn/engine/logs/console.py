"""Texts about a run on the console: start, intervals, validations, stop."""

from __future__ import annotations

from collections.abc import Mapping


def interval(epoch: float, values: Mapping[str, float], seconds_left: float) -> str:
    """Text about the steps since the last one.

    Args:
        epoch: epochs done, with fraction.
        values: as :meth:`ffn.engine.logs.meter.Meter.interval` returns them.
        seconds_left: time that the remaining steps take at this speed, without validations.
    """
    loss = f"loss {values['loss']:.3f}  " if "loss" in values else ""
    return (
        f"epoch {epoch:.2f}  {loss}{values['videos_per_s']:.0f} videos/s  "
        f"data wait {values['data_wait']:.0%}  {clock(seconds_left)} left"
    )


def clock(seconds: float) -> str:
    """A duration as hours, minutes and seconds.

    Example:
        >>> clock(62), clock(200_000)
        ('0:01:02', '55:33:20')
    """
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def validation(
    epoch: int,
    metrics: Mapping[int, Mapping[str, float]],
    score: float,
    *,
    measure: str,
    is_best: bool,
) -> str:
    """Line about a validation; a star marks the best score so far.

    Args:
        epoch: epochs done.
        metrics: measures by frame count.
        score: mean accuracy over the trained counts, in percent.
        measure: name of the accuracy: top1, or map with several labels per video.
        is_best: the score is the best so far.
    """
    title = {"top1": "top-1", "map": "mAP"}[measure]
    found = "  ".join(f"{frames}f {one[measure]:5.1f}" for frames, one in metrics.items())
    return f"epoch {epoch:3}  {title} %  {found}  mean {score:5.1f}{'*' if is_best else ''}"
