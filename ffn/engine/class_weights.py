"""Weights of the classes in the loss, for training lists with few videos of some classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def class_weights(
    labels: Sequence[Sequence[int]],
    num_classes: int,
    *,
    power: float = 1.0,
    swapped: Sequence[Sequence[int]] = (),
    multi_label: bool = False,
) -> Tensor:
    """Weights (K,) in float32, for n training videos of K classes, n_c of class c.

    With one label per video, ``w_c = a (n / (K n_c)) ** power``, with a such that the mean weight
    of the videos is 1: the loss keeps its scale. Classes without videos have the weight 0 and do
    not count in K. With several labels per video, ``w_c = ((n - n_c) / n_c) ** power``, for the
    positive labels (``pos_weight`` of torch); classes of no video and of every video have 1.

    >>> class_weights([[0], [0], [0], [1]], 2)
    tensor([0.6667, 2.0000])

    Args:
        labels: of each training video.
        num_classes: K.
        power: 1, or 0.5 for the square root, which balances less.
        swapped: pairs of classes that a random flip exchanges in half of the samples: both get
            their mean n_c.
        multi_label: videos may have several labels.
    """
    flat = torch.tensor([label for own in labels for label in own], dtype=torch.int64)
    counts = torch.bincount(flat, minlength=num_classes).double()
    for pair in map(list, swapped):
        counts[pair] = counts[pair].mean()
    if multi_label:
        weights = ((len(labels) - counts) / counts) ** power
        return weights.where((counts > 0) & (counts < len(labels)), 1.0).float()
    weights = (counts.sum() / ((counts > 0).sum() * counts)) ** power
    weights = weights.where(counts > 0, 0.0)
    return (weights * counts.sum() / (weights * counts).sum()).float()
