"""Training of a plain network: separately at one count, and the paper's ways to train one at two.

The paper compares its method with them (FFN, CVPR 2023, §4). Its other baselines need no task: a
fine-tuned network is a plain one that starts from ``model.weights``, and an ensemble is tested
with :func:`ffn.evaluation.ensemble`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ffn.engine.task_options import (
    MixedSamplingOptions,
    PlainOptions,
    ProportionalSamplingOptions,
    TaskOptions,
)
from ffn.engine.tasks.base import Task, register_task


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
        logits = self.model(self.clips(batch)[self.frames])
        name = f"{self.labels.loss_name}_{self.frames}"
        yield name, self.label_loss(logits, batch["label"]), self.frames, logits


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

    def clips(self, batch: dict[str, Any]) -> dict[int, Tensor]:
        """The larger view of a batch, mixed anew at each call."""
        large, small = batch["clips"][self.frames], batch["clips"][self.small]
        mixed = mix_frames(large, small, self.mix_probability)
        if hasattr(large, "_dynamo_weak_dynamic_indices"):  # of maybe_mark_dynamic, which is lost
            torch._dynamo.maybe_mark_dynamic(mixed, 2)
        return {self.frames: mixed}


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
