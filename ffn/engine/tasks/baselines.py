"""Training of a plain network, the paper's baselines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ffn.engine.tasks.base import Task, TaskOptions, register_task


@register_task("plain")
class PlainTask(Task):
    """Separated training (ST): cross-entropy at one frame count.

    Args:
        model: takes a clip, returns logits.
        frames: the view of the batch to train on.
    """

    def __init__(self, model: nn.Module, frames: int) -> None:
        super().__init__(model)
        self.frames = frames

    @classmethod
    def from_options(cls, model: nn.Module, options: TaskOptions) -> PlainTask:
        """Build the task at the one count in ``options.frames``."""
        return cls(model, options.frames[0])

    @classmethod
    def problems(cls, options: TaskOptions) -> list[str]:
        """Report any number of frame counts other than one."""
        if len(options.frames) == 1:
            return []
        return [
            f"task.frames is {options.frames}; task.name=plain trains exactly one frame count, "
            "e.g. task.frames=[8]"
        ]

    def losses(self, batch: dict[str, Any]) -> Iterator[tuple[str, Tensor, int, Tensor]]:
        """Yield the cross-entropy of the one view."""
        logits = self.model(batch["clips"][self.frames])
        yield f"ce_{self.frames}", F.cross_entropy(logits, batch["label"]), self.frames, logits
