"""What a network says of a video that it saw several times: the mean of its probabilities."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def video_logits(model: nn.Module, clips: Iterable[Tensor], videos: int) -> Tensor:
    """Run a network over the views of several videos, a part at a time.

    The probabilities (softmax) of a video's views are averaged, as SlowFast and UniFormer do (TSM's
    own test averages logits).

    Args:
        model: takes clips (n, C, T, H, W), returns logits (n, K).
        clips: the views of all videos in parts, those of the first video first.
        videos: B; each has equally many views.

    Returns:
        (B, K) float32: of one view its logits, of several the logarithm of their mean probability.
    """
    logits = torch.cat([model(part).float() for part in clips])  # (B * V, K)
    views = len(logits) // videos
    if views == 1:
        return logits
    log_probabilities = logits.log_softmax(-1).unflatten(0, (videos, views))  # (B, V, K)
    return log_probabilities.logsumexp(1) - math.log(views)
