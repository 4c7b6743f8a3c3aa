"""The classifier of a video network: pooling, dropout and a linear layer, under timm's names."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PooledClassifier(nn.Module):
    """Base of networks that average their feature maps and classify the result.

    A subclass defines ``forward_features`` and calls :meth:`add_classifier`. The methods have the
    names and meanings of timm's.

    Attributes:
        head_std: standard deviation of the weights of a new classifier.
        num_features: channels of the feature maps.
        num_classes: K; 0 without a classifier.
    """

    head_std = 0.01

    def add_classifier(self, num_features: int, num_classes: int, dropout: float) -> None:
        """Add dropout and a linear layer from ``num_features`` channels to K classes."""
        self.num_features = num_features
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(num_features, num_classes)
        self.num_classes = num_classes

    def forward(self, clip: Tensor) -> Tensor:
        """Classify clips (B, C, T, H, W) of any T; returns logits (B, K)."""
        return self.forward_head(self.forward_features(clip))

    def forward_head(
        self, features: Tensor | tuple[Tensor, ...], pre_logits: bool = False
    ) -> Tensor:
        """Logits (B, K) of the feature maps that ``forward_features`` returns.

        Args:
            features: (B, C, T, H, W), or a map per pathway.
            pre_logits: return the classifier's input (B, C) instead.
        """
        x = self.dropout(self.pool(features))
        return x if pre_logits else self.head(x)

    def frame_features(self, features: Tensor | tuple[Tensor, ...]) -> Tensor:
        """Averages over space alone (B, T, C); maps of fewer frames are interpolated."""
        maps = features if isinstance(features, tuple) else (features,)
        pooled = [x.mean((3, 4)).transpose(1, 2) for x in maps]  # (B, T, C)
        steps = max(x.shape[1] for x in pooled)
        return self.dropout(torch.cat([resample(x, steps) for x in pooled], 2))

    def pool(self, features: Tensor | tuple[Tensor, ...]) -> Tensor:
        """The average (B, C) of a feature map (B, C, T, H, W)."""
        return features.mean((2, 3, 4))

    @property
    def head_hidden_size(self) -> int:
        """Channels of the classifier's input."""
        return self.num_features

    def get_classifier(self) -> nn.Module:
        """The layer that returns logits."""
        return self.head

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the classifier by a new one; 0 classes: none, and ``pre_logits`` are returned.

        Raises:
            ValueError: the classifier is private to each frame count, or altered.
        """
        check_resettable(self.head)
        like = next(self.parameters())
        head = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        self.head, self.num_classes = head.to(like), num_classes
        init_classifier(self.head, self.head_std)


def resample(x: Tensor, steps: int) -> Tensor:
    """Interpolate (B, T, C) linearly to (B, steps, C)."""
    if x.shape[1] == steps:
        return x
    return F.interpolate(x.transpose(1, 2), steps, mode="linear").transpose(1, 2)


def check_resettable(classifier: nn.Module) -> None:
    """Raise ValueError for a classifier that is private to each frame count, or altered."""
    if isinstance(classifier, nn.ModuleDict) or hasattr(classifier, "alteration"):
        raise ValueError(
            "the classifier is private to each frame count, or altered; reset the classifier of "
            "the plain network (ffn.extract returns one), then convert it"
        )


def init_classifier(classifier: nn.Module, std: float) -> None:
    """Initialize a linear classifier with N(0, std) and zero biases; leave others unchanged."""
    if isinstance(classifier, nn.Linear):
        nn.init.normal_(classifier.weight, std=std)
        nn.init.zeros_(classifier.bias)
