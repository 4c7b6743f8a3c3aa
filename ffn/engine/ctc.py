"""The task of sequences, such as texts: connectionist temporal classification (CTC)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ffn.data import Splits
from ffn.engine.task_base import ConvertedTask, register_task
from ffn.engine.task_options import CtcOptions
from ffn.evaluation import evaluating
from ffn.texts import needed_steps


@register_task("ctc")
class CtcTask(ConvertedTask):
    """Sequences by CTC (Graves et al., ICML 2006): the sum of the losses of all views.

    Args:
        model: returns logits (B, T', K + 1) of clips of any T.
        options: of the task.
    """

    Options = CtcOptions
    label_kinds = ("characters", "words")
    measure = "wer"

    def __init__(self, model: nn.Module, options: CtcOptions) -> None:
        super().__init__(model)
        views = self.views(options)
        self.frames, self.upsample = sorted(views, reverse=True), options.upsample
        self.shortest = min(number for view in views.values() for number in view)
        self.uses_every_parameter = not options.draws

    @classmethod
    def from_options(cls, model: nn.Module, options: CtcOptions) -> CtcTask:
        """Build the task from its options."""
        return cls(model, options)

    @classmethod
    def model_args(cls, options: CtcOptions) -> dict[str, Any]:
        """The head over time."""
        given = {"layers": options.head, "hidden": options.hidden, "upsample": options.upsample}
        return {"head": {"name": "sequence", **given}}

    @torch.compiler.set_stance("force_eager")
    def check(self, splits: Splits, crop: int) -> None:
        """Raise ValueError for a text that is longer than the logits of the shortest view."""
        clip = next(self.model.parameters()).new_zeros(1, 3, self.shortest, crop, crop)
        with evaluating(self.model), torch.inference_mode():
            steps = self.model(clip).shape[1]
        for row, record in zip(splits.rows[0], splits.train, strict=True):
            if (needed := needed_steps(record.labels)) > steps:
                raise ValueError(
                    f"{row.where}: the text needs {needed} logits, one per token and one between "
                    f"equal tokens; {self.shortest} frames give {steps}. Set task.upsample to "
                    f"{math.ceil(needed * self.upsample / steps)} or more, raise the smallest "
                    "count, or take the row out"
                )

    def losses(self, batch: dict[str, Any]) -> Iterator[tuple[str, Tensor, int, Tensor]]:
        """Yield the loss of each view, the largest first."""
        for frames in self.frames:
            logits = self.logits(batch["clips"][frames])
            loss = self.labels.loss(logits, batch["label"])
            yield f"{self.labels.loss_name}_{frames}", loss, frames, logits
