"""An identity module that marks a place for weight alterations."""

from __future__ import annotations

from torch import Tensor, nn


class AlterationSite(nn.Module):
    """Identity on a feature map; ``ffn.convert`` replaces it with private weight alterations.

    A backbone puts one where the Frame Flexible Network alters features (paper §3.3).

    Args:
        channels: number of channels C of the feature map.
        channel_dim: dimension of the channels, 1 for convolutional maps, -1 for tokens.
        optional: altered with ``alter="all"`` only, not by default.
    """

    is_alteration_site = True

    def __init__(self, channels: int, channel_dim: int = 1, *, optional: bool = False) -> None:
        super().__init__()
        self.channels = channels
        self.channel_dim = channel_dim
        self.optional = optional

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` itself."""
        return x

    def extra_repr(self) -> str:
        """Channels, for ``print(model)``."""
        return f"channels={self.channels}" + (", optional" if self.optional else "")
