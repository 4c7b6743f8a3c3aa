"""What is trained: a model with its loss, as a module whose forward takes a batch.

``forward(batch)`` returns ``{"loss": ..., "loss/<name>": ..., "logits/<frames>": ...}``. The loop
never asks which task it has. A task also gives its losses one by one (``losses``), for a backward
after each view.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SMALL_VIEWS = ("distill", "label", "mixed")


class _Task(nn.Module):
    """Sums the losses that a task yields view by view."""

    def losses(self, batch: dict[str, Any]) -> Iterator[tuple[str, Tensor, int, Tensor]]:
        """Yield (name, weighted loss, frames, logits) for each view of a batch."""
        raise NotImplementedError

    def forward(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Run all views in one pass.

        Args:
            batch: ``{"clips": {frames: (B, C, T, H, W)}, "label": (B,)}``; a label may also be
                (B, K) probabilities, as :class:`ffn.engine.mixup.BatchMix` gives.

        Returns:
            The total loss, each view's loss, and each view's logits (B, K).
        """
        outputs: dict[str, Tensor] = {}
        total: Tensor | float = 0.0
        for name, loss, frames, logits in self.losses(batch):
            outputs[f"loss/{name}"] = loss.detach()
            outputs[f"logits/{frames}"] = logits.detach()
            total = total + loss
        return {"loss": total, **outputs}


class PlainTask(_Task):
    """Separated training (ST): cross-entropy at one frame count.

    Args:
        model: takes a clip, returns logits.
        frames: the view of the batch to train on.
    """

    def __init__(self, model: nn.Module, frames: int) -> None:
        super().__init__()
        self.model = model
        self.frames = frames

    def losses(self, batch: dict[str, Any]) -> Iterator[tuple[str, Tensor, int, Tensor]]:
        """Yield the cross-entropy of the one view."""
        logits = self.model(batch["clips"][self.frames])
        yield f"ce_{self.frames}", F.cross_entropy(logits, batch["label"]), self.frames, logits


class FlexibleTask(_Task):
    """Frame-flexible training (FFN, CVPR 2023, §3.2, eq. 3 to 5).

    ``CE(p_H, y) + λ Σ KL(sg(p_H) ‖ p_v)`` over the smaller views v: the largest view learns the
    label, the others learn the largest one's distribution and never see the label.

    Args:
        model: a frame-flexible network.
        trained_frames: the views; the largest is the teacher.
        distill_weight: λ.
        small_views: "distill" is the paper. "label" gives the smaller views the cross-entropy
            instead (the paper's ablation), "mixed" the mean of both.

    Raises:
        ValueError: an unknown ``small_views``.
    """

    def __init__(
        self,
        model: nn.Module,
        trained_frames: tuple[int, ...],
        *,
        distill_weight: float = 1.0,
        small_views: str = "distill",
    ) -> None:
        super().__init__()
        if small_views not in SMALL_VIEWS:
            raise ValueError(f'small_views is "{small_views}"; allowed: {", ".join(SMALL_VIEWS)}')
        self.model = model
        self.trained_frames = tuple(sorted(trained_frames))
        self.distill_weight = distill_weight
        self.small_views = small_views

    def losses(self, batch: dict[str, Any]) -> Iterator[tuple[str, Tensor, int, Tensor]]:
        """Yield the largest view's cross-entropy, then the loss of each smaller view."""
        *small, largest = self.trained_frames
        label = batch["label"]
        logits = self.model(batch["clips"][largest], active=largest)
        teacher = logits.detach().float().log_softmax(-1)
        yield f"ce_{largest}", F.cross_entropy(logits, label), largest, logits

        for frames in reversed(small):
            logits = self.model(batch["clips"][frames], active=frames)
            if self.small_views == "label":
                name, loss = "ce", F.cross_entropy(logits, label)
            else:
                name, loss = "kl", distillation(logits, teacher)
            if self.small_views == "mixed":
                name, loss = "mixed", (loss + F.cross_entropy(logits, label)) / 2
            yield f"{name}_{frames}", self.distill_weight * loss, frames, logits


def distillation(logits: Tensor, teacher: Tensor) -> Tensor:
    """``KL(teacher ‖ student)``, mean over the batch, without a temperature (PAPER §2).

    Args:
        logits: of the student (B, K).
        teacher: log-probabilities (B, K), without gradient.
    """
    student = logits.float().log_softmax(-1)
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True)


def top1(logits: Tensor, label: Tensor) -> Tensor:
    """Fraction of a batch whose largest logit is the label's.

    Args:
        logits: (B, K).
        label: (B,); or (B, K) probabilities, of which the largest counts: the label of the video
            that has the greater share in a mixed one.
    """
    label = label.argmax(-1) if label.ndim == 2 else label
    return (logits.argmax(-1) == label).float().mean()


def backward_each_view(
    task: _Task,
    batch: dict[str, Any],
    scale: float,
    scaler: torch.amp.GradScaler,
    autocast: torch.autocast,
) -> dict[str, Tensor]:
    """Run views one after another, each with its backward at once.

    Gradients equal those of one backward through :meth:`_Task.forward`; only one view's
    activations exist at a time.

    Args:
        task: the task, not wrapped in DDP.
        batch: see :meth:`_Task.forward`.
        scale: factor of every loss, one over the micro-batches of a step.
        scaler: the run's gradient scaler.
        autocast: the precision of the forward passes.

    Returns:
        What :meth:`_Task.forward` returns, without graph.
    """
    outputs: dict[str, Tensor] = {}
    total: Tensor | float = 0.0
    views = task.losses(batch)
    while True:
        with autocast:
            view = next(views, None)
        if view is None:
            return {"loss": total, **outputs}
        name, loss, frames, logits = view
        scaler.scale(loss * scale).backward()
        outputs[f"loss/{name}"] = loss.detach()
        outputs[f"logits/{frames}"] = logits.detach()
        total = total + loss.detach()
