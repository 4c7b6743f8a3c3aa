"""The base of networks with another head: a backbone without its classifier, and more layers."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class HeadNetwork(nn.Module):
    """A backbone whose classifier is removed; a subclass sets ``head``.

    Attributes:
        removed: name of the classifier in the backbone.
    """

    head: nn.Module

    def __init__(self, backbone: nn.Module, num_classes: int) -> None:
        super().__init__()
        names = {module: name for name, module in backbone.named_modules()}
        classifier = backbone.get_classifier()
        if classifier not in names:
            kind = type(getattr(backbone, "net", backbone)).__name__
            raise ValueError(f"{kind} has several classifiers; another head needs exactly one")
        self.removed = names[classifier]
        backbone.reset_classifier(0)
        self.backbone, self.num_classes = backbone, num_classes

    def forward(self, clip: Tensor) -> Tensor:
        """Logits of clips (B, C, T, H, W) of any T."""
        return self.forward_head(self.forward_features(clip))

    def forward_features(self, clip: Tensor) -> Any:
        """The last feature maps of the backbone."""
        return self.backbone.forward_features(clip)

    def forward_head(self, features: Any) -> Tensor:
        """Logits of :meth:`forward_features`."""
        return self.head(features)

    def get_classifier(self) -> nn.Module:
        """All layers after the backbone."""
        return self.head
