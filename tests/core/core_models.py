"""Networks that are converted in the tests: a tiny one of each family, and one not ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.video.resnet import BasicBlock, BasicStem, Conv3DSimple, VideoResNet

from ffn import backbones
from ffn.core import FrameFlexible, PrivateModules, WeightAlteration, convert

CLASSES = 3


@dataclass(frozen=True)
class Case:
    """A network, how it is converted, and what a clip for it measures in pixels."""

    build: Callable[[], nn.Module]
    size: int = 32
    options: dict[str, Any] = field(default_factory=dict)

    def plain(self) -> nn.Module:
        """The network in eval mode, with norms that a copy could not have by chance."""
        torch.manual_seed(0)
        return randomize(self.build()).eval()

    def flexible(self, trained_frames: tuple[int, ...] = (2, 4, 8), **options: Any) -> nn.Module:
        """A converted network in eval mode whose private modules all differ."""
        model = convert(self.plain(), trained_frames, **{**self.options, **options})
        return randomize(model).eval()

    def clip(self, frames: int, batch: int = 2, seed: int = 1) -> Tensor:
        shape = (batch, 3, frames, self.size, self.size)
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tiny(name: str, **options: Any) -> Case:
    return Case(
        lambda: backbones.build(name, num_classes=CLASSES, width=8), size=16, options=options
    )


TINY = tiny("tsm_tiny")

CASES = {
    "tsm_tiny": TINY,
    "tea_tiny": tiny("tea_tiny", alter="all"),
    "slowfast_tiny": tiny("slowfast_tiny"),
    "uniformer_tiny": tiny("uniformer_tiny"),
    "vit_tiny": tiny("vit_tiny"),
    "torchvision r3d": Case(
        lambda: VideoResNet(
            BasicBlock, [Conv3DSimple] * 4, [1, 1, 1, 1], BasicStem, num_classes=CLASSES
        ),
        size=16,
        options={"alter": ["layer*.conv1.0", "fc"]},
    ),
}


every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def randomize(model: nn.Module) -> nn.Module:
    """Draw affines, statistics and alterations; no branch starts at zero."""
    for module in model.modules():
        if isinstance(module, WeightAlteration):
            nn.init.uniform_(module.weight, -0.5, 0.5)
        elif isinstance(module, nn.BatchNorm2d | nn.BatchNorm3d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
        elif isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.3)  # TSM's tiny start would hide changes
    return model


def zero_alterations(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, WeightAlteration):
            nn.init.zeros_(module.weight)
    return model


def private_of(model: FrameFlexible, count: int) -> dict[str, nn.Module]:
    """The modules that a count owns, by name."""
    return {
        name: module[str(count)]
        for name, module in model.model.named_modules()
        if isinstance(module, PrivateModules)
    }
