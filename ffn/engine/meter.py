"""What the steps between two lines of the log report, over all processes."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ffn.engine.distributed import World, average, gather
from ffn.engine.tasks import top1


class Meter:
    """Sums what the steps of an interval report, and where the time went.

    Args:
        world: the processes; means and speeds are theirs together.

    Attributes:
        skipped: unreadable videos of this process in the epoch.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.skipped: list[str] = []
        self.restart()

    def restart(self) -> None:
        """Begin a new interval."""
        self.sums: dict[str, Tensor] = {}
        self.batches = self.left_out = 0
        self.start_clock()

    def start_clock(self) -> None:
        """Begin to measure speed."""
        self.videos, self.waited = 0, 0.0
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
            self.sums[key] = self.sums.get(key, 0) + value.double()
        self.batches += 1

    def read(self, outputs: dict[str, Any]) -> None:
        """Count the videos of a micro-batch, and those that could not be read."""
        self.videos += len(outputs["label"])
        self.skipped += outputs["skipped"]

    def leave_out(self) -> None:
        """Count a step whose numbers were not finite."""
        self.left_out += 1

    def means(self) -> dict[str, float]:
        """Means over the interval and all processes, and the count ``bad_steps``."""
        found: dict[str, float] = {}
        if self.sums:  # else no step was good
            sums = torch.stack(list(self.sums.values()))
            means = average(sums / self.batches, self.world)
            found = dict(zip(self.sums, means.tolist(), strict=True))
        return {**found, "bad_steps": self.left_out}

    def state(self) -> dict[str, Any]:
        """What the interval holds so far, of all processes together; all of them call it."""
        own = {
            "sums": {key: value.cpu() for key, value in self.sums.items()},
            "skipped": self.skipped,
        }
        states = gather(own, self.world)
        return {
            "sums": {k: sum(s["sums"][k] for s in states) / len(states) for k in self.sums},
            "batches": self.batches,
            "skipped": [text for s in states for text in s["skipped"]],
            "left_out": self.left_out,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` returned; what happened before counts for rank 0."""
        self.sums = {k: value.to(self.world.device) for k, value in state["sums"].items()}
        self.batches, self.left_out = state["batches"], state["left_out"]
        if self.world.is_main:
            self.skipped = list(state["skipped"])

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


def memory_mib(device: torch.device) -> float:
    """Return the peak memory of this process so far, in MiB.

    On CUDA the memory of tensors (``torch.cuda.max_memory_allocated``; the allocator reserves
    more). On a CPU the largest resident set of the process, without loader workers.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest / (2**20 if sys.platform == "darwin" else 2**10)  # bytes there, KiB elsewhere
