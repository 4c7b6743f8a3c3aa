"""Names of classes, and kinds of labels: one class per video, any number of them, or others.

Probabilities, losses and means of both kinds follow from one function, ``log_probabilities``.
With one label per video, the logits of K classes are one distribution over the classes (softmax).
With several labels, they are K independent Bernoulli distributions, present or absent (sigmoid).
"""

from __future__ import annotations

import math
import unicodedata
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SEPARATOR = "|"  # between the labels of a video in a list


def canonical(name: str) -> str:
    """A class name in the composed Unicode form (NFC): file systems and editors write several."""
    return unicodedata.normalize("NFC", name)


class SingleLabel:
    """One class per video: softmax and cross-entropy."""

    loss_name = "ce"  # in logs

    @staticmethod
    def log_probabilities(logits: Tensor) -> Tensor:
        """Log-softmax of logits (..., K), (..., K)."""
        return logits.log_softmax(-1)

    @staticmethod
    def probabilities(logits: Tensor) -> Tensor:
        """Softmax of logits (..., K), (..., K)."""
        return logits.softmax(-1)

    @staticmethod
    def loss(logits: Tensor, label: Tensor, weights: Tensor | None = None) -> Tensor:
        """Cross-entropy ``-sum_c w_c y_c log p_c``, mean over the videos.

        The mean divides by the number of videos, not by the sum of their weights as torch does for
        class indices: micro-batches and processes then add up to the loss of the whole batch.

        Args:
            logits: (B, K).
            label: (B,) class indices, or (B, K) probabilities.
            weights: of the classes (K,).
        """
        if weights is None:
            return F.cross_entropy(logits, label)
        logits = logits.to(torch.promote_types(logits.dtype, weights.dtype))
        weights = weights.to(logits.dtype)
        return F.cross_entropy(logits, label, weight=weights, reduction="sum") / len(label)

    @staticmethod
    def video_weights(label: Tensor, weights: Tensor | None) -> Tensor | None:
        """Weight of each video in losses without a label (B,): ``sum_c w_c y_c``; None for 1."""
        if weights is None:
            return None
        if label.ndim == 1:
            return weights[label]
        return label.to(weights.dtype) @ weights

    @staticmethod
    def smooth(label: Tensor, amount: float) -> Tensor:
        """Labels (B, K) with a share of ``amount`` spread over all classes."""
        return (1 - amount) * label + amount / label.shape[-1]

    @staticmethod
    def mean(logits: Tensor, dim: int) -> Tensor:
        """Logits of the mean probabilities over a dimension: their logarithm."""
        return logits.log_softmax(-1).logsumexp(dim) - math.log(logits.shape[dim])


class MultiLabel:
    """Any number of classes per video: sigmoid and binary cross-entropy."""

    loss_name = "bce"  # in logs

    @staticmethod
    def log_probabilities(logits: Tensor) -> Tensor:
        """Logarithms of p = sigmoid(logit) and of 1 - p, (..., K, 2), of logits (..., K)."""
        return torch.stack([F.logsigmoid(logits), F.logsigmoid(-logits)], -1)

    @staticmethod
    def probabilities(logits: Tensor) -> Tensor:
        """Sigmoid of logits (..., K), (..., K)."""
        return logits.sigmoid()

    @staticmethod
    def loss(logits: Tensor, label: Tensor, weights: Tensor | None = None) -> Tensor:
        """Binary cross-entropy, mean over the videos and the K classes.

        ``-(w_c y_c log p_c + (1 - y_c) log(1 - p_c))`` with ``p_c = sigmoid(logit_c)``.

        Args:
            logits: (B, K).
            label: (B, K), 0 or 1, or between them after mixup and label smoothing.
            weights: of the positive labels of each class (K,), the ``pos_weight`` of torch.
        """
        logits = logits.to(torch.promote_types(logits.dtype, label.dtype))
        return F.binary_cross_entropy_with_logits(
            logits, label.to(logits.dtype), pos_weight=weights
        )

    @staticmethod
    def video_weights(label: Tensor, weights: Tensor | None) -> None:
        """None: losses without a label have no weights."""

    @staticmethod
    def smooth(label: Tensor, amount: float) -> Tensor:
        """Labels (B, K) moved towards 1/2: ``(1 - amount) y + amount / 2``, as Keras does."""
        return (1 - amount) * label + amount / 2

    @staticmethod
    def mean(logits: Tensor, dim: int) -> Tensor:
        """Logits of the mean probabilities over a dimension: ``log p - log(1 - p)``."""
        present, absent = MultiLabel.log_probabilities(logits).unbind(-1)
        return present.logsumexp(dim) - absent.logsumexp(dim)


LabelKind = Any  # SingleLabel, MultiLabel, or an object of a registered kind


def label_kind(multi_label: bool) -> LabelKind:
    """`MultiLabel`, or `SingleLabel`."""
    return MultiLabel if multi_label else SingleLabel
