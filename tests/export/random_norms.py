"""Networks whose norms and weight alterations do something, as those of trained weights."""

from __future__ import annotations

from torch import nn

from ffn.core import WeightAlteration

BATCH_NORM = nn.modules.batchnorm._BatchNorm


def randomize(network: nn.Module) -> nn.Module:
    """Give norms and alterations values that matter; eval mode."""
    for module in network.modules():
        if isinstance(module, BATCH_NORM):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2)
        if isinstance(module, (BATCH_NORM, nn.LayerNorm)):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
        if isinstance(module, WeightAlteration):
            nn.init.uniform_(module.weight, -0.5, 0.5)
    return network.eval()
