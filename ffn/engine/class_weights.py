"""Weights of the classes in the loss, for training lists with few videos of some classes.

With one label per video, the weights are scaled so that their mean over the training videos is 1:
the loss keeps its scale, and a learning rate its meaning. With several labels per video, they weigh
the positive labels of each class (``pos_weight`` of torch).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def class_counts(
    labels: Sequence[int], num_classes: int, swapped: Sequence[Sequence[int]] = ()
) -> Tensor:
    """Training videos per class (K,), float64.

    Args:
        labels: of the training videos; all of them if a video has several.
        num_classes: K.
        swapped: pairs of classes that a random flip exchanges in half of the samples: both get
            their mean.
    """
    counts = torch.bincount(torch.tensor(labels, dtype=torch.int64), minlength=num_classes).double()
    for pair in map(list, swapped):
        counts[pair] = counts[pair].mean()
    return counts


def balanced_weights(counts: Tensor, power: float = 1.0) -> Tensor:
    """``(n / (K n_c)) ** power`` for n videos of K classes, n_c of class c; before scaling.

    With power 1, every class has the same sum of weights over the training videos.

    Args:
        counts: n_c (K,). Classes without videos do not count in K, and get the weight 0.
        power: 1, or 0.5 for the square root, which balances less.
    """
    weights = (counts.sum() / ((counts > 0).sum() * counts)) ** power
    return weights.where(counts > 0, 0.0)


def positive_weights(counts: Tensor, videos: int, power: float = 1.0) -> Tensor:
    """``((n - n_c) / n_c) ** power`` for n videos, n_c of class c, float32; several labels.

    With power 1, the positive labels of a class have the same sum of weights as its negative ones.

    >>> positive_weights(torch.tensor([2.0, 5.0, 10.0, 0.0]), 10)
    tensor([4., 1., 1., 1.])

    Args:
        counts: n_c (K,). Classes of no video and of every video get the weight 1: there is nothing
            to balance.
        videos: n.
        power: 1, or 0.5 for the square root, which balances less.
    """
    weights = ((videos - counts) / counts) ** power
    return weights.where((counts > 0) & (counts < videos), 1.0).float()


def with_mean_one(weights: Tensor, counts: Tensor) -> Tensor:
    """Weights (K,) in float32, scaled to ``sum_c n_c w_c = n``.

    >>> with_mean_one(torch.tensor([1.0, 3.0]), torch.tensor([30.0, 10.0]))
    tensor([0.6667, 2.0000])
    """
    return (weights * counts.sum() / (weights * counts).sum()).float()
