"""Learning-rate range test (Smith 2017, "Cyclical learning rates", 1506.01186, §3.3).

Train for a few hundred steps while the learning rate grows from very small to too large: the loss
falls where the rate is good, and rises where it is too large. The paper raises the rate linearly
and looks at the accuracy. Here the rate grows exponentially, over several orders of magnitude, and
the training loss is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ffn.engine.distributed import average
from ffn.engine.train_step import TrainStep

BETA = 0.95  # of the moving averages, which span about 20 steps
DIVERGED = 2.0  # the test ends at a smoothed loss this many times the lowest one
FIRST = 20  # steps before the averages are of enough losses to be compared
LEAST_FALL = 0.01  # of the loss, for a suggestion


@dataclass(frozen=True)
class RangeTest:
    """Result of a range test.

    Attributes:
        rates: learning rate of each step.
        losses: its training loss, over all processes; the last one may be NaN or infinite.
        diverged: the test ended before the largest rate.
    """

    rates: list[float]
    losses: list[float]
    diverged: bool

    @property
    def smoothed(self) -> list[float]:
        """Moving average of the losses up to each step."""
        return smooth(self.losses)

    @property
    def smoothed_rates(self) -> list[float]:
        """The rates that the smoothed losses belong to: geometric means with the same weights.

        An average over past steps at the rate of the last one would lie too far to the right.
        """
        return np.exp(smooth(np.log(self.rates))).tolist()


@dataclass(frozen=True)
class Suggestion:
    """Learning rates that stand out in a range test.

    Attributes:
        steepest: where the smoothed loss falls fastest.
        lowest: where the smoothed loss is lowest.
        loss: the lowest smoothed loss.
    """

    steepest: float
    lowest: float
    loss: float


def range_test(
    step: TrainStep, batches: Iterator[dict[str, Any]], rates: Iterable[float], *, steps: int
) -> RangeTest:
    """Train one step at each rate, until the loss diverges. All processes call it.

    Args:
        step: of the network, which is trained.
        batches: micro-batches, without end.
        rates: ascending, as of :func:`learning_rates`.
        steps: number of rates.
    """
    done: list[float] = []
    losses: list[float] = []
    diverged = False
    for number, lr in enumerate(rates):
        result = step.step(batches, number=number, lr=lr)
        own = [outputs["loss"].detach().double() for outputs in result.outputs if "loss" in outputs]
        sums = torch.tensor([sum(own), len(own)], dtype=torch.float64, device=step.world.device)
        total, used = average(sums, step.world).tolist()
        if not used:
            continue  # no video of this step is readable
        done.append(lr)
        losses.append(total / used)
        diverged = result.warning is not None or has_diverged(smooth(losses))
        if diverged:
            break
    return RangeTest(done, losses, diverged)


def endless(loader: DataLoader) -> Iterator[dict[str, Any]]:
    """The micro-batches of a training loader, epoch after epoch."""
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def learning_rates(low: float, high: float, steps: int) -> list[float]:
    """Rates from low to high with equal ratios.

    >>> [f"{rate:g}" for rate in learning_rates(1e-4, 1e-2, 5)]
    ['0.0001', '0.000316228', '0.001', '0.00316228', '0.01']
    """
    return [low * (high / low) ** (number / (steps - 1)) for number in range(steps)]


def smooth(losses: Sequence[float], beta: float = BETA) -> list[float]:
    """Exponential moving average with bias correction, ``a_i / (1 - beta^i)`` as in Adam.

    ``a_i = beta a_{i-1} + (1 - beta) loss_i``, with ``a_0 = 0`` and i from 1.
    """
    smoothed, mean = [], 0.0
    for number, loss in enumerate(losses, 1):
        mean = beta * mean + (1 - beta) * loss
        smoothed.append(mean / (1 - beta**number))
    return smoothed


def has_diverged(smoothed: Sequence[float]) -> bool:
    """Whether the last smoothed loss is not finite, or far above the lowest one."""
    if not math.isfinite(smoothed[-1]):
        return True
    later = smoothed[FIRST:]
    return bool(later) and later[-1] > DIVERGED * min(later)


def suggest(result: RangeTest) -> Suggestion | None:
    """The rate at which the smoothed loss falls fastest, and the one at which it is lowest.

    The slope at a step is that of the smoothed loss over the logarithm of the rate, between the
    points a twentieth of the steps before and after it. The first `FIRST` steps, and those after
    the lowest loss, do not count.

    Returns:
        None if the loss does not fall by `LEAST_FALL`, and by more than twice its noise, the
        standard deviation of single losses (that is about nine standard errors of the averages).
    """
    losses, smoothed = np.array(result.losses), np.array(result.smoothed)
    losses, smoothed = (x[np.isfinite(smoothed)][FIRST:] for x in (losses, smoothed))
    width = max(1, len(result.losses) // 20)
    lowest = int(smoothed.argmin()) if len(smoothed) else 0
    if lowest < 2 * width:
        return None
    fall = smoothed[0] - smoothed[lowest]
    noise = np.diff(losses[: lowest + 1]).std() / math.sqrt(2)
    if fall < max(2 * noise, LEAST_FALL * smoothed[0]):
        return None
    x, rates = np.log(result.smoothed_rates[FIRST:]), result.smoothed_rates[FIRST:]
    middle = np.arange(width, lowest - width + 1)
    slopes = (smoothed[middle + width] - smoothed[middle - width]) / (
        x[middle + width] - x[middle - width]
    )
    steepest = int(middle[slopes.argmin()])
    return Suggestion(rates[steepest], rates[lowest], float(smoothed[lowest]))
