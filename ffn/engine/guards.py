"""What keeps numbers that are not finite out of weights, statistics and checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ffn.engine.distributed import World, gather
from ffn.files import write_text

LISTED = "bad_batches.jsonl"


class StepGuard:
    """Takes back steps whose loss or gradients are not finite, counts them, and gives up in time.

    The forward pass of such a step has put its numbers into the running statistics of the norms, so
    leaving out the optimiser is not enough: statistics return to what they were before the step.

    Args:
        model: the network; its buffers are watched.
        folder: of the run; `bad_batches.jsonl` in it gets a line for each such step.
        limit: that many in a row end the run.
        advice: what to try then.

    Attributes:
        total: such steps of the whole run.
        in_a_row: such steps since the last good one.
    """

    def __init__(self, model: nn.Module, folder: Path, *, limit: int, advice: str = "") -> None:
        self.folder, self.limit, self.advice = folder, limit, advice
        self.total = self.in_a_row = 0
        self._groups = [
            (group, [buffer.clone() for buffer in group]) for group in _by_kind(model.buffers())
        ]

    def remember(self) -> None:
        """Note the statistics before a step."""
        for live, kept in self._groups:
            torch._foreach_copy_(kept, live)

    def accept(self) -> None:
        """A step was good."""
        self.in_a_row = 0

    def undo(self) -> None:
        """Put back the statistics that a step began with."""
        for live, kept in self._groups:
            torch._foreach_copy_(live, kept)

    def reject(
        self, step: int, losses: Sequence[float], videos: Sequence[str], world: World
    ) -> str:
        """Count a step that was taken back, and write down the videos that it was made of.

        All processes call it.

        Args:
            step: its number, from 1.
            losses: of this process's micro-batches.
            videos: this process's.
            world: the processes.

        Returns:
            A line that says so.

        Raises:
            FloatingPointError: it was one too many in a row.
        """
        self.total += 1
        self.in_a_row += 1
        found = gather({"loss": [str(loss) for loss in losses], "videos": list(videos)}, world)
        if world.is_main:
            line = {"step": step, "ranks": found}
            with (self.folder / LISTED).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        wrong = "loss" if _any_not_finite(found) else "gradient"
        text = f"the {wrong} is not finite around step {step}"
        if self.in_a_row >= self.limit:
            raise FloatingPointError(
                f"{text}, and has not been for {self.in_a_row} steps; {self.folder / LISTED} names "
                f"their videos. {self.advice}; no checkpoint was written meanwhile"
            )
        return f"{text}: left out ({self.in_a_row} in a row, {self.total} in all)"

    def forget_after(self, step: int) -> None:
        """Drop the lines of later steps, which come again; the main process calls it."""
        path = self.folder / LISTED
        if not path.is_file():
            return
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
        if kept != lines:
            write_text(path, "".join(kept))

    def state_dict(self) -> dict[str, int]:
        """The counts."""
        return {"total": self.total, "in_a_row": self.in_a_row}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Put back what :meth:`state_dict` returned."""
        self.total, self.in_a_row = state["total"], state["in_a_row"]


def not_finite(states: dict[str, Any]) -> list[str]:
    """Names of the floating-point tensors in a state dict that hold NaN or an infinity."""
    floats = {k: v for k, v in states.items() if torch.is_tensor(v) and v.is_floating_point()}
    if not floats:
        return []
    # One number per tensor, so that a GPU is waited for once.
    sums = torch.stack([value.detach().double().abs().sum() for value in floats.values()])
    return [key for key, good in zip(floats, sums.isfinite().tolist(), strict=True) if not good]


def _by_kind(buffers: Any) -> list[list[torch.Tensor]]:
    """Buffers of one type each: what one operation over many tensors takes."""
    kinds: dict[torch.dtype, list[torch.Tensor]] = {}
    for buffer in buffers:
        kinds.setdefault(buffer.dtype, []).append(buffer)
    return list(kinds.values())


def _any_not_finite(found: list[dict[str, Any]]) -> bool:
    losses = [float(loss) for entry in found for loss in entry["loss"]]
    return not torch.tensor(losses).isfinite().all()
