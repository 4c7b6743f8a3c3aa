"""Mixup, CutMix and label smoothing: videos of a batch are mixed, and their labels with them.

On the device, after normalisation. All views of a video are mixed alike: the same partner, share
and box, so that a small view still shows what the large one shows. The largest view learns the
mixed label; distillation learns the largest view's answer to the mixed video and needs no label.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from ffn.data import library_draws


class BatchMix:
    """Mixup (Zhang et al. 2018), CutMix (Yun et al. 2019), label smoothing (Szegedy et al. 2016).

    Each video is mixed with the one before it in the batch, by torchvision's `MixUp` and `CutMix`;
    with both set, each batch gets one of them, either with probability 1/2 (timm, SlowFast). The
    share comes from Beta(alpha, alpha). Draws depend on (seed, step, micro-batch, rank) alone.

    Args:
        num_classes: K.
        mixup: alpha of mixup; 0: off.
        cutmix: alpha of CutMix; 0: off.
        smoothing: share of the label that is spread over all classes, 0 <= s < 1.
        seed: of the draws.

    Raises:
        ValueError: a number is outside its range.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        smoothing: float = 0.0,
        seed: int = 0,
    ) -> None:
        if mixup < 0 or cutmix < 0 or not 0 <= smoothing < 1:
            raise ValueError(
                f"mixup {mixup}, cutmix {cutmix}, smoothing {smoothing}; expected alphas of at "
                "least 0 and 0 <= smoothing < 1"
            )
        self.num_classes, self.smoothing, self.seed = num_classes, smoothing, seed
        options = {"num_classes": num_classes, "labels_getter": lambda batch: batch["label"]}
        self.mixes = [v2.MixUp(alpha=mixup, **options)] if mixup else []
        self.mixes += [v2.CutMix(alpha=cutmix, **options)] if cutmix else []

    def __call__(
        self, batch: dict[str, Any], *, step: int, micro: int, rank: int
    ) -> dict[str, Any]:
        """Mix a batch.

        Args:
            batch: ``{"clips": {frames: (B, C, T, H, W)}, "label": (B,)}``, clips normalised.
            step: optimiser steps done, over all epochs.
            micro: which micro-batch of the step.
            rank: of the process.

        Returns:
            The same with labels (B, K) float32 that sum to 1; the batch itself if nothing is set.
        """
        if not self.mixes and not self.smoothing:
            return batch
        if self.mixes:
            entropy = np.random.SeedSequence([self.seed, step, micro, rank])
            generator = np.random.default_rng(entropy)
            mix = self.mixes[generator.integers(len(self.mixes))]
            videos = {t: tv_tensors.Video(clip) for t, clip in batch["clips"].items()}
            with library_draws(generator):
                batch = mix({"clips": videos, "label": batch["label"]})
            clips = {t: video.as_subclass(Tensor) for t, video in batch["clips"].items()}
            label = batch["label"]
        else:
            clips, label = batch["clips"], F.one_hot(batch["label"], self.num_classes).float()

        label = (1 - self.smoothing) * label + self.smoothing / self.num_classes
        return {"clips": clips, "label": label}
