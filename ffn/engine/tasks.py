"""Tasks: a model with its loss, as a module whose forward takes a batch.

``forward(batch)`` returns ``{"loss": ..., "loss/<name>": ..., "logits/<frames>": ...}``. A task
also yields its losses one by one (``losses``), for a backward pass after each view. The train step
does not depend on the kind of task. Tasks are registered by name with :func:`register_task`, each
with its own options; your own package adds one in the same way.

``contrastive`` learns without labels (:mod:`ffn.engine.contrastive`).
``flexible`` is the paper's method, ``plain`` trains a network separately at one count. The paper
compares with ``mixed_sampling`` and ``proportional_sampling``, two ways to train a plain network at
two counts (FFN, CVPR 2023, §4). Its other baselines need no task: a fine-tuned network is a plain
one that starts from ``model.weights``, and an ensemble is tested with
:func:`ffn.evaluation.ensemble`. ``ctc`` (:mod:`ffn.engine.ctc`) learns texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ffn.engine.contrastive import ContrastiveTask as ContrastiveTask
from ffn.engine.ctc import CtcTask as CtcTask
from ffn.engine.freezing import freeze
from ffn.engine.task_base import TASKS as TASKS
from ffn.engine.task_base import ConvertedTask, Task, register_task
from ffn.engine.task_options import (
    FlexibleOptions,
    MixedSamplingOptions,
    PlainOptions,
    ProbeOptions,
    ProportionalSamplingOptions,
    TaskOptions,
)
from ffn.labels import MultiLabel, SingleLabel


@register_task("flexible")
class FlexibleTask(ConvertedTask):
    """Frame-flexible training (FFN, CVPR 2023, §3.2, eq. 3 to 5).

    ``CE(p_H, y) + λ Σ KL(sg(p_H) ‖ p_v)`` over the smaller views v: the largest view learns the
    label, the others learn the largest one's distribution and do not use the label. With class
    weights, the KL of a video has the weight of its label, as its cross-entropy has. With several
    labels per video, CE is the binary cross-entropy and KL that of Bernoulli distributions, both
    means over the classes (:func:`distillation`); class weights belong to the labels alone.

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

    def losses(self, batch: dict[str, Any]) -> Iterator[tuple[str, Tensor, int, Tensor]]:
        """Yield the largest view's cross-entropy, then the loss of each smaller view."""
        *small, largest = self.trained_frames
        clips, label = batch["clips"], batch["label"]
        logits = self.logits(clips[largest])
        teacher = self.labels.log_probabilities(_float(logits.detach()))
        loss = self.labels.loss(logits, label, self.class_weights)
        yield f"{self.labels.loss_name}_{largest}", loss, largest, logits

        for frames in reversed(small):
            logits = self.logits(clips[frames])
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
            return self.labels.loss_name, self.labels.loss(logits, label, self.class_weights)
        weights = self.labels.video_weights(label, self.class_weights)
        loss = distillation(logits, teacher, weights)
        if self.small_views == "mixed":
            return "mixed", (loss + self.labels.loss(logits, label, self.class_weights)) / 2
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


@register_task("probe")
class ProbeTask(FlexibleTask):
    """An attentive probe on a frozen network, with the loss of :class:`FlexibleTask`.

    Features are computed once (:mod:`ffn.engine.features`); the trained layers run on them alone.
    """

    Options = ProbeOptions
    reads_features = True

    @classmethod
    def from_options(cls, model: nn.Module, options: ProbeOptions) -> ProbeTask:
        """Build the task, and freeze the backbone of the model."""
        freeze(model, "backbone")
        return super().from_options(model, options)

    @classmethod
    def model_args(cls, options: ProbeOptions) -> dict[str, Any]:
        """The probe."""
        return {"head": {"name": "probe", **options.model_dump(include={"width", "depth", "grid"})}}


@register_task("plain")
class PlainTask(Task):
    """Separated training (ST): cross-entropy at one frame count.

    Args:
        model: takes a clip, returns logits.
        frames: the view of the batch to train on.
    """

    Options = PlainOptions

    def __init__(self, model: nn.Module, frames: int) -> None:
        super().__init__(model)
        self.frames = frames

    @classmethod
    def from_options(cls, model: nn.Module, options: TaskOptions) -> PlainTask:
        """Build the task at the largest count in ``options.frames``."""
        return cls(model, max(options.frames))

    def losses(self, batch: dict[str, Any]) -> Iterator[tuple[str, Tensor, int, Tensor]]:
        """Yield the cross-entropy of the one view."""
        logits = self.logits(batch["clips"][self.frames])
        loss = self.labels.loss(logits, batch["label"], self.class_weights)
        yield f"{self.labels.loss_name}_{self.frames}", loss, self.frames, logits


@register_task("mixed_sampling")
class MixedSamplingTask(PlainTask):
    """Mixed sampling: a plain network trains on the larger of two views (FFN, CVPR 2023, §4).

    With a probability, the smaller view of a video is mixed into as many consecutive frames of the
    larger one, at a random position. The draws are from torch's global generator, which the train
    step seeds.

    Note:
        The paper states no mixing coefficient. A mixed frame is the mean of the frames of both
        views. The label is that of the video, which both show.

    Args:
        model: takes a clip, returns logits.
        frames: the larger view, which the network is trained on.
        small: the smaller view.
        mix_probability: of each video (the paper's rho).
    """

    Options = MixedSamplingOptions

    def __init__(
        self, model: nn.Module, frames: int, small: int, *, mix_probability: float = 0.5
    ) -> None:
        super().__init__(model, frames)
        self.small, self.mix_probability = small, mix_probability

    @classmethod
    def from_options(cls, model: nn.Module, options: MixedSamplingOptions) -> MixedSamplingTask:
        """Build the task for the two counts in ``options.frames``."""
        small, large = sorted(options.frames)
        return cls(model, large, small, mix_probability=options.mix_probability)

    def losses(self, batch: dict[str, Any]) -> Iterator[tuple[str, Tensor, int, Tensor]]:
        """Yield the cross-entropy of the larger view, mixed anew at each call."""
        large, small = batch["clips"][self.frames], batch["clips"][self.small]
        mixed = mix_frames(large, small, self.mix_probability)
        return super().losses({**batch, "clips": {self.frames: mixed}})


def mix_frames(large: Tensor, small: Tensor, probability: float) -> Tensor:
    """Average a clip with consecutive frames of a longer clip, for a random part of the videos.

    Args:
        large: (B, C, T, H, W).
        small: (B, C, S, H, W) of the same videos, S <= T.
        probability: of each video to be mixed. Which videos are mixed, and the first of the S
            frames, uniform over all positions, are drawn on the CPU: the same on every device.

    Returns:
        A new clip (B, C, T, H, W).
    """
    videos, _, frames, *_ = large.shape
    length = small.shape[2]
    chosen = (torch.rand(videos) < probability).nonzero()  # (N, 1)
    first = torch.randint(frames - length + 1, (videos,))[chosen]  # (N, 1)
    place = chosen, slice(None), first + torch.arange(length)  # (N, S) frames of N videos

    mixed = large.clone()
    mixed[place] = (large[place] + small[chosen[:, 0]].transpose(1, 2)) / 2  # (N, S, C, H, W)
    return mixed


@register_task("proportional_sampling")
class ProportionalSamplingTask(PlainTask):
    """Proportional sampling: a plain network trains at one of its counts per step (FFN, §4).

    The loader draws the count of a step for all processes. A batch has one view, with the name of
    the largest count, and only its frames are decoded.

    Note:
        The paper has two counts. With more, the smaller ones share the remaining probability
        equally.

    Args:
        model: takes a clip, returns logits.
        frames: the view of the batch: the largest count.
    """

    Options = ProportionalSamplingOptions

    @classmethod
    def views(cls, options: ProportionalSamplingOptions) -> dict[int, dict[int, float]]:
        """One view: each count with its probability, spread over its range if it has one."""
        views = super().views(options)
        *small, largest = views
        rest = (1 - options.largest_probability) / len(small)
        share = dict.fromkeys(small, rest) | {largest: options.largest_probability}
        return {largest: {n: share[v] * p for v, drawn in views.items() for n, p in drawn.items()}}
