"""The metrics of each kind of labels, from results per video that processes gather.

The labels of a data set tell its kind: (N,) class indices, or (N, K) with ones for several labels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ffn.evaluation import multi_label
from ffn.evaluation.metrics import NOT_FINITE, UNREADABLE, accuracy, label_ranks
from ffn.evaluation.multi_label import multi_label_accuracy
from ffn.evaluation.results import MultiLabelRow, Row
from ffn.labels import MultiLabel, SingleLabel


class SingleLabelMeasures:
    """Top-1, top-5 and mean-class accuracy, from the rank of the label in the logits."""

    labels = SingleLabel
    row = Row

    @staticmethod
    def column(logits: Tensor, label: Tensor, ok: Tensor) -> Tensor:
        """Results per video (B,): ranks; see `ffn.evaluation.metrics`."""
        return label_ranks(logits, label).cpu().where(ok, UNREADABLE)

    @staticmethod
    def not_finite(column: Tensor) -> Tensor:
        """Videos (B,) with logits that are NaN or infinite."""
        return column == NOT_FINITE

    @staticmethod
    def compute(column: Tensor, label: Tensor) -> dict[str, float]:
        """Metrics in percent; see :func:`ffn.evaluation.accuracy`."""
        return accuracy(column, label)


class MultiLabelMeasures:
    """Mean average precision and F1, from the logits."""

    labels = MultiLabel
    row = MultiLabelRow

    @staticmethod
    def column(logits: Tensor, label: Tensor, ok: Tensor) -> Tensor:
        """Results per video (B, K): logits; see `ffn.evaluation.multi_label`.

        Raises:
            ValueError: the model has another number of classes than the labels.
        """
        if logits.shape != label.shape:
            raise ValueError(
                f"logits have shape {tuple(logits.shape)}, labels {tuple(label.shape)}. Use a "
                "model and annotations of the same data set"
            )
        finite = logits.isfinite().all(1, keepdim=True)
        logits = logits.where(finite, torch.nan).cpu()
        return logits.where(ok[:, None], multi_label.UNREADABLE)

    @staticmethod
    def not_finite(column: Tensor) -> Tensor:
        """Videos (B,) with logits that are NaN or infinite."""
        return column.isnan().any(1)

    @staticmethod
    def compute(column: Tensor, label: Tensor) -> dict[str, float]:
        """Metrics in percent; see :func:`ffn.evaluation.multi_label_accuracy`."""
        return multi_label_accuracy(column, label)


Measures = type[SingleLabelMeasures] | type[MultiLabelMeasures]


def measures_of(label: Tensor) -> Measures:
    """The metrics for labels (N,), or (N, K) with several labels per video."""
    return MultiLabelMeasures if label.ndim == 2 else SingleLabelMeasures
