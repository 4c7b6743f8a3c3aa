"""Frame-flexible training, the paper's method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ffn.engine.task_options import FlexibleOptions, TaskOptions
from ffn.engine.tasks.base import Task, register_task
from ffn.labels import MultiLabel, SingleLabel


@register_task("flexible")
class FlexibleTask(Task):
    """Frame-flexible training (FFN, CVPR 2023, §3.2, eq. 3 to 5).

    ``CE(p_H, y) + λ Σ KL(sg(p_H) ‖ p_v)`` over the smaller views v: the largest view learns the
    label, the others learn the largest one's distribution and do not use the label. With class
    weights, the KL of a video has the weight of its label, as its cross-entropy has. With several
    labels per video, CE is the binary cross-entropy and KL that of Bernoulli distributions, both
    means over the classes (:func:`distillation`); class weights belong to the labels alone.

    Without ``task.draws``, each sub-network has a view. With it, there are fewer views than
    sub-networks: the count of a view is drawn anew in each step, and the owner of the count runs.

    Args:
        model: a frame-flexible network.
        trained_frames: names of the views, by their largest counts; the largest is the teacher.
        distill_weight: λ.
        small_views: "distill" is the paper. "label" gives the smaller views the cross-entropy
            instead (the paper's ablation), "mixed" the mean of both.
    """

    Options = FlexibleOptions

    def __init__(
        self,
        model: nn.Module,
        trained_frames: tuple[int, ...],
        *,
        distill_weight: float = 1.0,
        small_views: str = "distill",
    ) -> None:
        super().__init__(model)
        self.trained_frames = tuple(sorted(trained_frames))
        self.distill_weight = distill_weight
        self.small_views = small_views

    @classmethod
    def from_options(cls, model: nn.Module, options: FlexibleOptions) -> FlexibleTask:
        """Build the task for the views of the options."""
        task = cls(
            model,
            tuple(cls.views(options)),
            distill_weight=options.distill_weight,
            small_views=options.small_views,
        )
        task.uses_every_parameter = not options.draws
        return task

    @classmethod
    def conversion(cls, options: FlexibleOptions) -> dict[str, Any]:
        """Private modules and alterations for all counts in ``options.frames``."""
        return {
            "trained_frames": options.trained_frames,
            "private": options.private,
            "alter": "sites" if options.alteration else "none",
            "interpolate": options.interpolate,
        }

    @classmethod
    def views(cls, options: FlexibleOptions) -> dict[int, dict[int, float]]:
        """The views of ``options.draws``, each named by its last count, or one per sub-network."""
        if not options.draws:
            return super().views(options)
        views = {high: (low, high) for low, high in options.draws}
        return super().views(TaskOptions(frames=list(views), ranges=list(views.values())))

    def losses(self, batch: dict[str, Any]) -> Iterator[tuple[str, Tensor, int, Tensor]]:
        """Yield the largest view's cross-entropy, then the loss of each smaller view."""
        *small, largest = self.trained_frames
        clips, label = self.clips(batch), batch["label"]
        logits = self.model(clips[largest])
        teacher = self.labels.log_probabilities(_float(logits.detach()))
        yield f"{self.labels.loss_name}_{largest}", self.label_loss(logits, label), largest, logits

        for frames in reversed(small):
            logits = self.model(clips[frames])
            name, loss = self.small_view_loss(logits, teacher, label)
            yield f"{name}_{frames}", self.distill_weight * loss, frames, logits

    def small_view_loss(self, logits: Tensor, teacher: Tensor, label: Tensor) -> tuple[str, Tensor]:
        """Name and loss of a view below the largest.

        Args:
            logits: of the view (B, K).
            teacher: log-probabilities of the largest view (B, K), or (B, K, 2) with several labels,
                without gradient.
            label: (B,), or (B, K) probabilities.
        """
        if self.small_views == "label":
            return self.labels.loss_name, self.label_loss(logits, label)
        loss = distillation(logits, teacher, self.video_weights(label))
        if self.small_views == "mixed":
            return "mixed", (loss + self.label_loss(logits, label)) / 2
        return "kl", loss


def distillation(logits: Tensor, teacher: Tensor, weights: Tensor | None = None) -> Tensor:
    """``KL(teacher ‖ student)``, mean over the batch, without a temperature (FFN, §3.2).

    With one label per video, the distributions are those of the K classes:
    ``KL = sum_c p_c (log p_c - log q_c)``, p of the teacher, q of the student. With several, each
    class has a Bernoulli distribution, and the result is also the mean over the classes, as the
    binary cross-entropy is:
    ``KL_c = p_c (log p_c - log q_c) + (1 - p_c) (log(1 - p_c) - log(1 - q_c))``.

    Args:
        logits: of the student (B, K).
        teacher: log-probabilities (B, K); with several labels per video (B, K, 2), those of p and
            1 - p. Without gradient.
        weights: factor of each video (B,), with one label per video; None for 1.
    """
    labels = MultiLabel if teacher.ndim > logits.ndim else SingleLabel
    student = labels.log_probabilities(_float(logits))
    if weights is None:
        total = F.kl_div(student, teacher, reduction="sum", log_target=True)
        return total / (student.numel() // student.shape[-1])
    each = F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)
    return (weights * each).mean()


def _float(logits: Tensor) -> Tensor:
    """Logits in float32 at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
