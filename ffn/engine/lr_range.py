"""Learning-rate range test (Smith 2017, "Cyclical learning rates", 1506.01186, §3.3).

Train for a few hundred steps while the learning rate grows from very small to too large: the loss
falls where the rate is good, and rises where it is too large. The paper raises the rate linearly
and looks at the accuracy. Here the rate grows exponentially, over several orders of magnitude, and
the training loss is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from ffn.engine.train_step import TrainStep
from ffn.evaluation.collect import gather

BETA = 0.95  # of the moving averages, which span about 20 steps
DIVERGED = 2.0  # the test ends at a smoothed loss this many times the lowest one
FIRST = 20  # steps before the averages are of enough losses to be compared
LEAST_FALL = 0.01  # of the loss, for a suggestion


def range_test(
    step: TrainStep, batches: Iterator[dict[str, Any]], rates: Iterable[float]
) -> tuple[list[float], list[float]]:
    """Train one step at each rate, until the loss diverges. All processes call it.

    Returns:
        The rates of the steps, and their losses over all processes. The last loss may be NaN or
        infinite.
    """
    done: list[float] = []
    losses: list[float] = []
    for number, lr in enumerate(rates):
        result = step.step(batches, number=number, lr=lr)
        own = [float(outputs["loss"].detach()) for outputs in result.outputs if "loss" in outputs]
        every = [loss for found in gather(own) for loss in found]
        if not every:
            continue  # no video of this step is readable
        done.append(lr)
        losses.append(sum(every) / len(every))
        if result.warning is not None or has_diverged(losses):
            break
    if not done:
        raise ValueError("no training video could be read; ffn check_data lists the causes")
    return done, losses


def endless(loader: DataLoader, grad_accum_steps: int = 1) -> Iterator[dict[str, Any]]:
    """The micro-batches of the steps of a training loader, epoch after epoch."""
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        yield from islice(loader, len(loader) // grad_accum_steps * grad_accum_steps)
        epoch += 1


def smooth(values: Sequence[float]) -> np.ndarray:
    """Exponential moving average with bias correction, ``a_i / (1 - beta^i)`` as in Adam.

    ``a_i = beta a_{i-1} + (1 - beta) value_i``, with ``a_0 = 0`` and i from 1.
    """
    smoothed, mean = [], 0.0
    for number, value in enumerate(values, 1):
        mean = BETA * mean + (1 - BETA) * value
        smoothed.append(mean / (1 - BETA**number))
    return np.array(smoothed)


def has_diverged(losses: Sequence[float]) -> bool:
    """Whether the smoothed loss is not finite at last, or far above the lowest one."""
    smoothed = smooth(losses)
    later = smoothed[FIRST:]
    is_high = len(later) > 0 and later[-1] > DIVERGED * later.min()
    return bool(is_high or not math.isfinite(smoothed[-1]))


def suggest(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """A tenth of the rate at which the smoothed loss is lowest.

    The first `FIRST` steps do not count. The rates are averaged with the same weights as the
    losses, since the average of past losses belongs left of the last rate.

    Returns:
        The rate. None if the loss does not fall by `LEAST_FALL`, and by more than twice its noise,
        the standard deviation of single losses (that is about nine standard errors of the
        averages).
    """
    smoothed = smooth(losses)[FIRST:]
    smoothed = smoothed[np.isfinite(smoothed)]
    lowest = int(smoothed.argmin()) if len(smoothed) else 0
    if not lowest:
        return None
    noise = np.diff(losses[FIRST : FIRST + lowest + 1]).std() / math.sqrt(2)
    if smoothed[0] - smoothed[lowest] < max(2 * noise, LEAST_FALL * smoothed[0]):
        return None
    return float(np.exp(smooth(np.log(rates)))[FIRST + lowest]) / 10


def report_lines(rates: Sequence[float], losses: Sequence[float], scale: float) -> list[str]:
    """Console lines about a range test: a table of its curve, and a suggestion.

    ``scale`` is the learning rate of a step over ``optim.lr``; not 1 with
    ``optim.base_batch_size``.
    """
    curve = list(zip(np.exp(smooth(np.log(rates))) / scale, smooth(losses), strict=True))
    shown = curve[FIRST :: max(1, len(curve) // 20)]
    lines = ["     optim.lr  smoothed loss"]
    lines += [f"{rate:13.2g}  {loss:13.4g}" for rate, loss in shown]
    if has_diverged(losses):
        lines.append(f"{rates[-1] / scale:13.2g}       diverged")
    found = suggest(rates, losses)
    if found is None:
        advice = "no suggestion: the loss did not fall. Give more --steps, other rates or weights"
        return [*lines, advice]
    text = f"suggestion: optim.lr={found / scale:.2g}, a tenth of the rate with the lowest loss"
    return [*lines, text]
