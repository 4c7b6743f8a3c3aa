"""The mark that says where a weight alteration may go: an identity that knows its channels."""

from __future__ import annotations

from torch import Tensor, nn


class AlterationSite(nn.Module):
    """Identity on a feature map whose channels stand in dimension ``channel_dim``.

    A backbone puts one where the Frame Flexible Network alters features (PAPER §3.3);
    ``ffn.convert`` replaces it by private weight alterations and leaves it alone otherwise.

    Args:
        channels: number of channels C of the feature map.
        channel_dim: dimension that holds them, 1 for convolutional maps, -1 for tokens.
        optional: altered only when all sites are asked for, not by default.
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
