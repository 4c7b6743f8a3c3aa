"""Networks whose norms do something, as those of trained weights; files as functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

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


def open_file(path: Path) -> Callable[[Tensor], Tensor]:
    """What runs a .pt2 or .onnx file."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def assert_close(found: Tensor, expected: Tensor) -> None:
    """Within 1e-4 of the largest value."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * expected.abs().max().item())
