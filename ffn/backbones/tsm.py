"""TSM: a temporal shift in the residual blocks of a 2-D CNN (Lin et al., ICCV 2019, 1811.08383).

Shift of 1/8 + 1/8 of the channels, or of 1/8 from the past, before the first convolution of every
residual block; logits are averaged over the frames. The networks and their ImageNet weights are
timm's; `BLOCKS` has the classes of their blocks. Left out: non-local blocks, in-place shift, and
shortcuts that are concatenated, as in DenseNet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import timm
from timm.models import _efficientnet_blocks as efficientnet
from timm.models import byobnet, cspnet, regnet, resnet
from timm.models.convnext import ConvNeXtBlock
from timm.models.resnet import BasicBlock, ResNet
from torch import nn

from ffn.backbones.registry import register, register_family
from ffn.layers import HEAD_STD, PerFrame, ShiftConv2d, init_classifier


@dataclass(frozen=True)
class Block:
    """A class of residual blocks of timm, ``shortcut(x) + branch(x)``.

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


class TSM(PerFrame):
    """A 2-D CNN with temporal shifts, for clips of any length.

    Args:
        net: a timm CNN with residual blocks of a known class; changed in place. Its state-dict
            keys do not change.
        shift_divisor: 8 shifts 1/8 of a block's input channels back and 1/8 forth.
        shift_every: 2 shifts in every second block of each stage, starting with the first.
        causal: shift forth only, for streams (paper, §3.3).

    Raises:
        ValueError: ``net`` has no residual block that can shift; see :func:`shiftable_convs`.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        shift_divisor: int = 8,
        shift_every: int = 1,
        causal: bool = False,
    ) -> None:
        super().__init__(net, causal=causal)
        for name in _every(shiftable_convs(net), shift_every):
            conv = net.get_submodule(name)
            shifted = ShiftConv2d(conv, self.length, shift_divisor, causal=causal)
            net.set_submodule(name, shifted)

    @property
    def shifted(self) -> tuple[str, ...]:
        """Names of the convolutions that shift their input."""
        return tuple(name for name, m in self.named_modules() if isinstance(m, ShiftConv2d))


def shiftable_convs(net: nn.Module) -> dict[str, str]:
    """Find the convolutions that shift: those that read the input of a residual branch.

    A block counts if its branch has a convolution larger than 1 x 1. A block without a shortcut (as
    the strided blocks of MobileNet) does not: without the unshifted path in parallel, a shift would
    destroy spatial features (paper, §3.2).

    Args:
        net: a 2-D CNN of timm; it does not change.

    Returns:
        The name of the block, by name of the convolution.

    Raises:
        ValueError: there is none, or one of them is of another class than ``nn.Conv2d``.
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
    others = {type(net.get_submodule(name)) for name in found} - {nn.Conv2d}
    if others or not found:
        known = ", ".join(sorted({block.__name__ for block in BLOCKS}))
        raise ValueError(
            f"{type(net).__name__} cannot shift: it needs residual blocks of a known class "
            f"({known}) that start with an nn.Conv2d"
            + "".join(f", not a {kind.__name__}" for kind in others)
            + ". Choose a CNN such as resnet50, regnety_004, mobilenetv2_100 or convnext_tiny"
        )
    return found


def _every(convs: dict[str, str], step: int) -> list[str]:
    """The convolutions of every step-th block of each stage; blocks are ``<stage>.<block>``."""
    stages: dict[str, list[str]] = {}
    for block in dict.fromkeys(convs.values()):
        stages.setdefault(block.rpartition(".")[0], []).append(block)
    chosen = {block for stage in stages.values() for block in stage[::step]}
    return [conv for conv, block in convs.items() if block in chosen]


def _tsm(net: nn.Module, **options: Any) -> TSM:
    init_classifier(net.get_classifier(), HEAD_STD)
    return TSM(net, **options)


@register_family("tsm")
def tsm_of(
    timm_name: str,
    *,
    num_classes: int = 400,
    pretrained: bool = False,
    dropout: float = 0.5,
    drop_path: float = 0.0,
    shift_every: int = 1,
    causal: bool = False,
    **kwargs: Any,
) -> TSM:
    """TSM inside a timm CNN.

    Args:
        timm_name: as in ``timm.list_models()``; a ``.tag`` chooses among pretrained weights.
        num_classes: K.
        pretrained: start from timm's ImageNet weights; the classifier is new.
        dropout: probability before the classifier (0.5 in the paper's recipes).
        drop_path: stochastic depth rate of the last block; it grows linearly from 0.
        shift_every, causal: see :class:`TSM`.
        kwargs: further arguments of ``timm.create_model``.
    """
    if drop_path:  # some timm networks do not accept it
        kwargs["drop_path_rate"] = drop_path
    net = timm.create_model(
        timm_name, pretrained=pretrained, num_classes=num_classes, drop_rate=dropout, **kwargs
    )
    return _tsm(net, shift_every=shift_every, causal=causal)


# TSM, tables 1 and 5; FFN, tables 1 and 3 (R50, and R18 / R101 on Something-Something V1).


@register
def tsm_r18(**kwargs: Any) -> TSM:
    """TSM-ResNet18: 1.8 GMACs per frame at 224."""
    return tsm_of("resnet18", **kwargs)


@register
def tsm_r50(**kwargs: Any) -> TSM:
    """TSM-ResNet50: 4.1 GMACs per frame at 224."""
    return tsm_of("resnet50", **kwargs)


@register
def tsm_r101(**kwargs: Any) -> TSM:
    """TSM-ResNet101: 7.8 GMACs per frame at 224."""
    return tsm_of("resnet101", **kwargs)


@register
def tsm_r101_alternate(**kwargs: Any) -> TSM:
    """TSM-ResNet101 of TSM's authors and MMAction2, with a shift in every second block."""
    return tsm_of("resnet101", shift_every=2, **kwargs)


@register
def tsm_mobilenetv2(**kwargs: Any) -> TSM:
    """TSM-MobileNetV2, the paper's network for edge devices: 0.3 GMACs per frame at 224."""
    return tsm_of("mobilenetv2_100", **kwargs)


@register
def tsm_tiny(
    *, num_classes: int = 400, dropout: float = 0.0, width: int = 16, causal: bool = False
) -> TSM:
    """A TSM for CPUs and small frames (32 to 64 px), 0.3 M parameters and 4.4 MMACs per frame.

    The stages have 1, 2, 4 and 8 times ``width`` channels.
    """
    net = tiny_resnet(BasicBlock, width, num_classes=num_classes, drop_rate=dropout)
    return _tsm(net, causal=causal)


def tiny_resnet(block: type[nn.Module], width: int, **kwargs: Any) -> ResNet:
    """A ResNet of four blocks for small frames, whose branches contribute from the first step.

    The stages have 1, 2, 4 and 8 times ``width`` channels; timm's ``ResNet`` gets ``kwargs``.
    """
    net = ResNet(
        block,
        (1, 1, 1, 1),
        zero_init_last=False,
        stem_type="deep",
        stem_width=width // 2,
        channels=(width, 2 * width, 4 * width, 8 * width),
        **kwargs,
    )
    net.maxpool = nn.Identity()  # frames are small already
    return net
