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


class ByLength(nn.Module):
    """Another norm for clips of some lengths, and an attribute that the forward sets."""

    def __init__(self, is_other: Callable[[int], bool]) -> None:
        super().__init__()
        self.is_other, self.frames = is_other, 0
        self.conv, self.head = nn.Conv3d(3, 4, 3, padding=1), nn.Linear(4, 5)
        self.usual, self.other = nn.BatchNorm3d(4), nn.BatchNorm3d(4)

    def forward(self, clip: Tensor) -> Tensor:
        self.frames = clip.shape[2]
        norm = self.other if self.is_other(self.frames) else self.usual
        return self.frames * self.head(norm(self.conv(clip)).relu().mean((2, 3, 4)))


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
