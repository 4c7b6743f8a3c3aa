"""Residual blocks of timm's 2-D CNNs, and the convolution that reads the input of their branch.

A residual block computes ``shortcut(x) + branch(x)``. `BLOCKS` has the classes that are known; a
CNN of other blocks needs an entry. Left out: shortcuts that are concatenated, as in DenseNet.
"""

from __future__ import annotations

from dataclasses import dataclass

from timm.models import _efficientnet_blocks as efficientnet
from timm.models import byobnet, cspnet, regnet, resnet
from timm.models.convnext import ConvNeXtBlock
from torch import nn


@dataclass(frozen=True)
class Block:
    """A class of residual blocks.

    Attributes:
        convs: names of the first convolution of the branch; the first that the block has counts.
        shortcut: attribute that is None or False in blocks without a shortcut; "" if all have one.
    """

    convs: tuple[str, ...]
    shortcut: str = ""


BLOCKS: dict[type[nn.Module], Block] = {
    resnet.BasicBlock: Block(("conv1",)),
    resnet.Bottleneck: Block(("conv1",)),
    regnet.Bottleneck: Block(("conv1.conv",), "downsample"),
    ConvNeXtBlock: Block(("conv_dw",)),
    efficientnet.ConvBnAct: Block(("conv",), "has_skip"),
    efficientnet.DepthwiseSeparableConv: Block(("conv_dw",), "has_skip"),
    efficientnet.EdgeResidual: Block(("conv_exp",), "has_skip"),
    efficientnet.InvertedResidual: Block(("conv_pw",), "has_skip"),
    efficientnet.UniversalInvertedResidual: Block(("dw_start.conv", "pw_exp.conv"), "has_skip"),
    byobnet.BasicBlock: Block(("conv1_kxk.conv",), "shortcut"),
    byobnet.BottleneckBlock: Block(("conv1_1x1.conv",), "shortcut"),
    cspnet.DarkBlock: Block(("conv1.conv",)),
}


def residual_convs(net: nn.Module) -> dict[str, str]:
    """Find the convolutions that read the input of a residual branch.

    A block counts if its branch has a convolution larger than 1 x 1. A block without a shortcut (as
    the strided blocks of MobileNet) does not: without the unshifted path in parallel, a shift would
    destroy spatial features (TSM §3.2).

    Args:
        net: a 2-D CNN of timm; it does not change.

    Returns:
        The name of the block, by name of the convolution.
    """
    found = {}
    for name, module in net.named_modules():
        block = next((BLOCKS[kind] for kind in type(module).__mro__ if kind in BLOCKS), None)
        if block is None or (block.shortcut and not getattr(module, block.shortcut)):
            continue
        kernels = [getattr(m, "kernel_size", 1) for m in module.modules()]
        inside = dict(module.named_modules())
        conv = next((conv for conv in block.convs if conv in inside), None)
        if conv is not None and any(max(k) > 1 for k in kernels if isinstance(k, tuple)):
            found[f"{name}.{conv}"] = name
    return found
