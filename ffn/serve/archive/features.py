"""The features that a network's classifier gets, for embeddings of videos."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.hooks import RemovableHandle

from ffn.export.packed_layers import PackedLinear
from ffn.labels import label_kind
from ffn.serve.prediction import Prediction

TOLERANCE = 0.02  # of probabilities: the classifier may run in bf16


class FeatureTap:
    """Records the input of the classifier while networks run inside its context.

    The classifier is the last linear layer with one output per class that a forward pass calls.
    Features of several frames or positions are averaged, as their logits are.

    Args:
        num_classes: outputs of the classifier.
    """

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes
        self._handle: RemovableHandle | None = None
        self._input: Tensor | None = None
        self._logits: Tensor | None = None

    def __enter__(self) -> FeatureTap:
        self._input = self._logits = None
        self._handle = register_module_forward_hook(self._record)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()

    def _record(self, module: nn.Module, inputs: tuple, output: Tensor) -> None:
        linear = isinstance(module, (nn.Linear, PackedLinear))
        if linear and module.out_features == self._num_classes:
            self._input, self._logits = inputs[0].detach(), output.detach()

    def features(self, predictions: Sequence[Prediction]) -> Tensor:
        """Features of the last batch, float32 (B, D) on the CPU.

        Args:
            predictions: of the batch; the features must lead to them.

        Raises:
            ValueError: the network does not end with a linear classifier.
        """
        if self._input is not None:
            videos = len(predictions)
            logits = self._logits.float().reshape(videos, -1, self._num_classes).mean(1).cpu()
            labels = label_kind(predictions[0].multi_label)
            found = torch.stack([labels.probabilities(row) for row in logits])
            expected = torch.stack([each.probabilities for each in predictions])
            if (found - expected).abs().max() <= TOLERANCE:
                width = self._input.shape[-1]
                return self._input.float().reshape(videos, -1, width).mean(1).cpu()
        raise ValueError(
            "the network does not end with a linear layer that gives its logits, so its features "
            "are unknown; predict without features"
        )
