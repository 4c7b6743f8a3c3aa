"""Learning-rate range test (Smith 2017, "Cyclical learning rates", 1506.01186, §3.3).

Train for a few hundred steps while the learning rate grows from very small to too large: the loss
falls where the rate is good, and rises where it is too large. The paper raises the rate linearly
and looks at the accuracy. Here the rate grows exponentially, over several orders of magnitude, and
the training loss is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ffn.engine.distributed import average
from ffn.engine.train_step import TrainStep
from ffn.evaluation.plots import COLORS, GRAY, new_figure, tidy, write_figure
from ffn.files import write_text

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
    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Moving averages up to each step of the rates (geometric means) and of the losses.

        The same weights for both: the average of past losses belongs left of the last rate.
        """
        return np.exp(smooth(np.log(self.rates))), smooth(self.losses)


def range_test(
    step: TrainStep, batches: Iterator[dict[str, Any]], rates: Iterable[float]
) -> RangeTest:
    """Train one step at each rate, until the loss diverges. All processes call it.

    Args:
        step: of the network, which is trained.
        batches: micro-batches, without end.
        rates: ascending.
    """
    done: list[float] = []
    losses: list[float] = []
    for number, lr in enumerate(rates):
        result = step.step(batches, number=number, lr=lr)
        own = [outputs["loss"].detach().double() for outputs in result.outputs if "loss" in outputs]
        sums = torch.tensor([sum(own), len(own)], dtype=torch.float64, device=step.world.device)
        total, used = average(sums, step.world).tolist()
        if not used:
            continue  # no video of this step is readable
        done.append(lr)
        losses.append(total / used)
        if result.warning is not None or has_diverged(smooth(losses)):
            return RangeTest(done, losses, diverged=True)
    return RangeTest(done, losses, diverged=False)


def endless(loader: DataLoader) -> Iterator[dict[str, Any]]:
    """The micro-batches of a training loader, epoch after epoch."""
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        yield from loader
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


def has_diverged(smoothed: np.ndarray) -> bool:
    """Whether the last smoothed loss is not finite, or far above the lowest one."""
    later = smoothed[FIRST:]
    is_high = len(later) > 0 and later[-1] > DIVERGED * later.min()
    return bool(is_high or not math.isfinite(smoothed[-1]))


def suggest(result: RangeTest) -> dict[str, float] | None:
    """The rate at which the smoothed loss falls fastest, and the one at which it is lowest.

    The slope at a step is that of the smoothed loss over the logarithm of the rate, between the
    points a twentieth of the steps before and after it. The first `FIRST` steps, and those after
    the lowest loss, do not count.

    Returns:
        These two rates, ``steepest`` and ``lowest``, and the lowest smoothed ``loss``. None if the
        loss does not fall by `LEAST_FALL`, and by more than twice its noise, the standard deviation
        of single losses (that is about nine standard errors of the averages).
    """
    rates, smoothed = (values[FIRST:] for values in result.curve)
    smoothed = smoothed[np.isfinite(smoothed)]
    width = max(1, len(result.losses) // 20)
    lowest = int(smoothed.argmin()) if len(smoothed) else 0
    if lowest < 2 * width:
        return None
    noise = np.diff(result.losses[FIRST : FIRST + lowest + 1]).std() / math.sqrt(2)
    if smoothed[0] - smoothed[lowest] < max(2 * noise, LEAST_FALL * smoothed[0]):
        return None
    x, y = np.log(rates[: lowest + 1]), smoothed[: lowest + 1]
    slopes = (y[2 * width :] - y[: -2 * width]) / (x[2 * width :] - x[: -2 * width])
    steepest = width + int(slopes.argmin())
    found = {"steepest": rates[steepest], "lowest": rates[lowest], "loss": smoothed[lowest]}
    return {name: float(value) for name, value in found.items()}


def report_lines(result: RangeTest, suggestion: dict[str, float] | None, scale: float) -> list[str]:
    """Console lines about a range test.

    Args:
        result: the test.
        suggestion: what was found in it.
        scale: learning rate of a step over ``optim.lr``; not 1 with ``optim.base_batch_size``.
    """
    rates = result.rates
    end = "; the loss has diverged" if result.diverged else ""
    first = f"{len(rates)} steps at learning rates from {rates[0]:.2g} to {rates[-1]:.2g}{end}"
    if suggestion is None:
        return [
            first,
            "no suggestion: the smoothed loss did not fall. Give more --steps or other rates, and "
            "check the start weights; without any, epochs may pass before the loss falls",
        ]
    steepest, lowest = suggestion["steepest"], suggestion["lowest"]
    return [
        first,
        f"the smoothed loss falls fastest at {steepest:.2g}, and is lowest "
        f"({suggestion['loss']:.3g}) at {lowest:.2g}",
        f"suggestion: optim.lr from {steepest / scale:.2g} to {lowest / scale:.2g}, between these "
        "two; one seed and a few steps find the order of magnitude",
    ]


def save_range_test(
    result: RangeTest, suggestion: dict[str, float] | None, folder: Path, config: dict[str, Any]
) -> list[Path]:
    """Write ``lr_range.json``, with the options of the test, and ``lr_range.png``; return both."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"lr_range.{suffix}" for suffix in ("json", "png")]
    content = {
        "suggestion": suggestion,
        "diverged": result.diverged,
        "rates": result.rates,
        "losses": [loss if math.isfinite(loss) else None for loss in result.losses],
        "config": config,
    }
    write_text(files[0], json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    _save_figure(result, suggestion, files[1])
    return files


def _save_figure(result: RangeTest, suggestion: dict[str, float] | None, path: Path) -> None:
    rates, smoothed = result.curve
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    axes.plot(result.rates, result.losses, color=COLORS[0], alpha=0.3, label="loss")
    axes.plot(rates, smoothed, color=COLORS[0], linewidth=1.8, label="smoothed")
    if suggestion is not None:
        for name, style in (("steepest", "--"), ("lowest", ":")):
            rate = suggestion[name]
            axes.axvline(rate, color=GRAY, linestyle=style, linewidth=1.2, label=f"{rate:.2g}")
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("training loss")
    if len(shown := smoothed[np.isfinite(smoothed)]):
        margin = 0.25 * np.ptp(shown) or 0.1
        axes.set_ylim(shown.min() - margin, shown.max() + margin)  # single losses may be far above
    tidy(axes)
    axes.legend(frameon=False)
    write_figure(figure, path)
