"""Metrics of training between two log lines, over all processes: means, speed, skipped videos."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ffn.engine.distributed import World
from ffn.engine.train_step import StepResult
from ffn.evaluation.collect import gather


class Meter:
    """Accumulates losses, accuracies, speed and skipped videos of the steps of an interval.

    Args:
        world: the processes; means and speeds are over all of them.
        accuracy: also top-1 of the training batches. Videos with several labels have none, and a
            mean of the average precision of small batches is not that of the data set.
    """

    def __init__(self, world: World, *, accuracy: bool = True) -> None:
        self.world, self._accuracy = world, accuracy
        self._skipped: list[str] = []  # unreadable videos of this process in the epoch
        self.restart()

    def restart(self) -> None:
        """Begin an interval."""
        self._sums: dict[str, Tensor] = {}
        self._batches = self._bad_steps = 0
        self.restart_clock()

    def restart_clock(self) -> None:
        """Begin to measure speed."""
        self._videos, self._steps, self._waited = 0, 0, 0.0
        self._started = time.perf_counter()

    def timed(self, batches: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the batches and measure the time spent waiting for each."""
        while True:
            begin = time.perf_counter()
            batch = next(batches, None)
            self._waited += time.perf_counter() - begin
            if batch is None:
                return
            yield batch

    def add(self, result: StepResult) -> None:
        """Add a step: losses and accuracies per view, if it updated the weights; videos."""
        for outputs in result.outputs:
            self._videos += len(outputs["label"])
            self._skipped += outputs["skipped"]
            if result.updated:
                self._add_losses(outputs)
        self._steps += 1
        self._bad_steps += result.warning is not None

    def interval(self, *, lr: float, grad_norm: Tensor) -> dict[str, float]:
        """Metrics of the interval, as the log stores them; see docs/training.md."""
        elapsed = time.perf_counter() - self._started
        return {
            **self.means(),
            "lr": lr,
            "grad_norm": float(grad_norm),
            "videos_per_s": self._videos * self.world.size / elapsed,
            "data_wait": self._waited / elapsed,
            "memory_mib": memory_mib(self.world.device),
        }

    def means(self) -> dict[str, float]:
        """Means over the interval and all processes, and the count ``bad_steps``."""
        sums = self._total()
        means = {key: value / max(1, self._batches) for key, value in sums.items()}
        return {**means, "bad_steps": self._bad_steps}

    def seconds_per_step(self) -> float:
        """Mean time of a step since the clock was restarted, with the waiting for data."""
        return (time.perf_counter() - self._started) / max(1, self._steps)

    def take_skipped(self) -> list[str]:
        """Reasons of the skipped videos of the epoch, on all processes, once each; clears them."""
        found = gather(self._skipped)
        self._skipped = []
        return list(dict.fromkeys(text for texts in found for text in texts))

    def state_dict(self) -> dict[str, Any]:
        """State of the interval over all processes; all of them call it."""
        return {
            "means": {k: torch.tensor(v, dtype=torch.float64) for k, v in self._total().items()},
            "batches": self._batches,
            "skipped": [text for texts in gather(self._skipped) for text in texts],
            "bad_steps": self._bad_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; rank 0 takes the skipped videos of all."""
        self._sums = {k: value.to(self.world.device) for k, value in state["means"].items()}
        self._batches, self._bad_steps = state["batches"], state["bad_steps"]
        if self.world.is_main:
            self._skipped = list(state["skipped"])

    def _total(self) -> dict[str, float]:
        """Sums, of which each is the mean over all processes."""
        values = torch.stack(list(self._sums.values())).tolist() if self._sums else []
        every = gather(dict(zip(self._sums, values, strict=True)))
        keys = dict.fromkeys(key for sums in every for key in sums)
        return {key: sum(sums.get(key, 0.0) for sums in every) / self.world.size for key in keys}

    def _add_losses(self, outputs: dict[str, Any]) -> None:
        values = {k: v.detach() for k, v in outputs.items() if k.startswith("loss")}
        for key, logits in outputs.items():
            if self._accuracy and key.startswith("logits/"):
                values[f"top1/{key.removeprefix('logits/')}"] = 100 * top1(logits, outputs["label"])
        for key, value in values.items():
            self._sums[key] = self._sums.get(key, 0) + value.double()
        self._batches += 1


def top1(logits: Tensor, label: Tensor) -> Tensor:
    """Fraction of a batch whose largest logit is the label's.

    Args:
        logits: (B, K).
        label: (B,); or (B, K) probabilities, of which the largest counts: the label of the video
            with the greater share in a mixed one.
    """
    label = label.argmax(-1) if label.ndim == 2 else label
    return (logits.argmax(-1) == label).float().mean()


def memory_mib(device: torch.device) -> float:
    """Peak memory of this process so far, in MiB: of allocated CUDA tensors, or on a CPU of all."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest / (2**20 if sys.platform == "darwin" else 2**10)  # bytes there, KiB elsewhere
