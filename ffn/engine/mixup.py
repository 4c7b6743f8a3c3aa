"""Mixup, CutMix and label smoothing of a batch, on the device after normalization.

All views of a video have the same partner, ratio and box, so that small and large views show the
same content. The largest view learns the mixed label; distillation uses the largest view's output
and no label.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ffn.data import library_draws
from ffn.labels import label_kind


class BatchMix:
    """Mixup (Zhang et al. 2018), CutMix (Yun et al. 2019), label smoothing (Szegedy et al. 2016).

    Mixes each video with the one before it in the batch, with torchvision's `MixUp` and `CutMix`.
    If both are set, each batch gets one of them, with probability 1/2 (timm, SlowFast). The ratio
    is drawn from Beta(alpha, alpha), as a function of (seed, step, micro-batch, rank).

    Args:
        num_classes: K.
        mixup: alpha of mixup; 0: off.
        cutmix: alpha of CutMix; 0: off.
        smoothing: label smoothing, 0 <= s < 1.
        seed: of the random numbers.
        multi_label: labels are (B, K), ones for the classes of a video; see
            :class:`ffn.labels.MultiLabel` for their smoothing.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        smoothing: float = 0.0,
        seed: int = 0,
        multi_label: bool = False,
    ) -> None:
        self.num_classes, self.smoothing, self.seed = num_classes, smoothing, seed
        self.labels = label_kind(multi_label)
        self.mixes = _build_mixes(num_classes, mixup, cutmix) if mixup or cutmix else []

    @property
    def absent(self) -> float:
        """Value of a smoothed label for a class that the video does not have."""
        return float(self.labels.smooth(torch.zeros(self.num_classes), self.smoothing)[0])

    def __call__(
        self, batch: dict[str, Any], *, step: int, micro: int, rank: int
    ) -> dict[str, Any]:
        """Mix a batch.

        Args:
            batch: ``{"clips": {frames: (B, C, T, H, W)}, "label": (B,)}``, clips normalized;
                several labels (B, K).
            step: optimizer steps done, over all epochs.
            micro: which micro-batch of the step.
            rank: of the process.

        Returns:
            A batch with labels (B, K) float32; the given one if nothing is set.
        """
        if not self.mixes and not self.smoothing:
            return batch
        if self.mixes:
            entropy = np.random.SeedSequence([self.seed, step, micro, rank])
            generator = np.random.default_rng(entropy)
            mix = self.mixes[generator.integers(len(self.mixes))]
            from torchvision import tv_tensors

            videos = {t: tv_tensors.Video(clip) for t, clip in batch["clips"].items()}
            with library_draws(generator):
                batch = mix({"clips": videos, "label": batch["label"]})
            clips = {t: video.as_subclass(Tensor) for t, video in batch["clips"].items()}
            label = batch["label"]
        else:
            clips, label = batch["clips"], batch["label"]
            label = F.one_hot(label, self.num_classes).float() if label.ndim == 1 else label
        return {"clips": clips, "label": self.labels.smooth(label, self.smoothing)}


def _build_mixes(num_classes: int, mixup: float, cutmix: float) -> list[nn.Module]:
    """torchvision's transforms; imported here, since its import takes two seconds."""
    from torchvision.transforms import v2

    options = {"num_classes": num_classes, "labels_getter": lambda batch: batch["label"]}
    mixes = {v2.MixUp: mixup, v2.CutMix: cutmix}
    return [mix(alpha=alpha, **options) for mix, alpha in mixes.items() if alpha]
