"""What the steps between two lines of the log report, over all processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ffn.engine.distributed import World, average
from ffn.engine.tasks import top1


class Meter:
    """Sums what the steps of an interval report, and where the time went.

    Args:
        world: the processes; means and speeds are theirs together.

    Attributes:
        skipped: unreadable videos of this process, over all intervals.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.skipped: list[str] = []
        self.restart()

    def restart(self) -> None:
        """Begin a new interval."""
        self.sums: dict[str, Tensor] = {}
        self.batches = self.videos = 0
        self.waited = 0.0
        self.started = time.perf_counter()

    def timed(self, batches: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The same batches; the time spent on waiting for each is counted."""
        while True:
            begin = time.perf_counter()
            batch = next(batches, None)
            self.waited += time.perf_counter() - begin
            if batch is None:
                return
            yield batch

    def add(self, outputs: dict[str, Any]) -> None:
        """Count a micro-batch: its losses, accuracies from its logits per view, skipped videos."""
        label = outputs["label"]
        values = {k: v.detach() for k, v in outputs.items() if k.startswith("loss")}
        for key, logits in outputs.items():
            if key.startswith("logits/"):
                values[f"top1/{key.removeprefix('logits/')}"] = 100 * top1(logits, label)
        for key, value in values.items():
            self.sums[key] = self.sums.get(key, 0) + value
        self.batches += 1
        self.videos += len(label)
        self.skipped += outputs["skipped"]

    def means(self) -> dict[str, float]:
        """Means over the interval and all processes."""
        sums = torch.stack([value.double() for value in self.sums.values()])
        means = average(sums / self.batches, self.world)
        return dict(zip(self.sums, means.tolist(), strict=True))

    def speed(self) -> tuple[float, float]:
        """Videos per second of all processes, and the share of time spent waiting for data.

        A video that is drawn several times counts each time.
        """
        elapsed = time.perf_counter() - self.started
        return self.videos * self.world.size / elapsed, self.waited / elapsed

    def rate(self) -> str:
        """The speed so far, for the progress bar."""
        rate, waited = self.speed()
        return f"{rate:.0f} videos/s, data {waited:.0%}"
