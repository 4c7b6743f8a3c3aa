"""TSM: a temporal shift in the residual blocks of a 2-D CNN (Lin et al., ICCV 2019, 1811.08383).

Offline, bidirectional shift of 1/8 + 1/8 of the channels before the first convolution of every
residual block; logits are averaged over the frames. The networks and their ImageNet weights are
timm's. Left out: the online form, non-local blocks, and in-place shift.
"""

from __future__ import annotations

from typing import Any

import timm
from timm.models.resnet import BasicBlock, ResNet
from torch import nn

from ffn.backbones.registry import register, register_family, register_pretrained
from ffn.backbones.residual import BLOCKS, residual_convs
from ffn.layers import HEAD_STD, ShiftConv2d, TimedPerFrame, init_classifier

# What ffn.convert makes private by default.
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class TSM(TimedPerFrame):
    """A 2-D CNN with temporal shifts, for clips of any length.

    Args:
        net: a timm CNN with residual blocks of a known class; changed in place. Its state-dict
            keys do not change.
        shift_divisor: 8 shifts 1/8 of a block's input channels back and 1/8 forth.
        shift_every: 2 shifts in every second block of each stage, starting with the first.

    Raises:
        ValueError: ``net`` has no residual block that can shift; see :func:`shiftable_convs`.
    """

    def __init__(self, net: nn.Module, *, shift_divisor: int = 8, shift_every: int = 1) -> None:
        super().__init__(net)
        for name in _every(shiftable_convs(net), shift_every):
            conv = net.get_submodule(name)
            net.set_submodule(name, ShiftConv2d(conv, self.length, shift_divisor))

    @property
    def shifted(self) -> tuple[str, ...]:
        """Names of the convolutions that shift their input."""
        return tuple(name for name, m in self.named_modules() if isinstance(m, ShiftConv2d))


def shiftable_convs(net: nn.Module) -> dict[str, str]:
    """Find the convolutions that shift: the name of the residual block, by that of the convolution.

    They read the input of a residual branch; see :func:`~ffn.backbones.residual.residual_convs`.

    Raises:
        ValueError: there is none, one of them is of another class than ``nn.Conv2d``, or the
            network has no norm that :func:`ffn.convert` could make private.
    """
    kind, choice = type(net).__name__, "resnet50, regnety_004, mobilenetv2_100 or convnext_tiny"
    convs = residual_convs(net)
    if not convs:
        known = ", ".join(sorted({block.__name__ for block in BLOCKS}))
        raise ValueError(
            f"{kind} has no residual block of a class that is known ({known}); choose a CNN such "
            f"as {choice}"
        )
    for name, block in convs.items():
        if type(conv := net.get_submodule(name)) is not nn.Conv2d:
            raise ValueError(
                f"{block} of {kind} starts with a {type(conv).__name__}; only an nn.Conv2d can "
                f"shift. Choose a CNN such as {choice}"
            )
    if not any(isinstance(module, NORMS) and module._parameters for module in net.modules()):
        raise ValueError(
            f"{kind} has no BatchNorm, LayerNorm or GroupNorm that ffn.convert could make private "
            f"to each frame count; choose a CNN such as {choice}"
        )
    return convs


def _every(convs: dict[str, str], step: int) -> list[str]:
    """The convolutions of every step-th block of each stage; blocks are ``<stage>.<block>``."""
    stages: dict[str, list[str]] = {}
    for block in dict.fromkeys(convs.values()):
        stages.setdefault(block.rpartition(".")[0], []).append(block)
    chosen = {block for stage in stages.values() for block in stage[::step]}
    return [conv for conv, block in convs.items() if block in chosen]


def _tsm(net: nn.Module, shift_every: int = 1) -> TSM:
    init_classifier(net.get_classifier(), HEAD_STD)
    return TSM(net, shift_every=shift_every)


@register_family("tsm")
def tsm_of(
    timm_name: str,
    *,
    num_classes: int = 400,
    pretrained: bool = False,
    dropout: float = 0.5,
    drop_path: float = 0.0,
    shift_every: int = 1,
    **kwargs: Any,
) -> TSM:
    """TSM inside a timm CNN.

    Args:
        timm_name: as in ``timm.list_models()``; a ``.tag`` chooses among pretrained weights.
        num_classes: K.
        pretrained: start from timm's ImageNet weights; the classifier is new.
        dropout: probability before the classifier (0.5 in the paper's recipes).
        drop_path: stochastic depth rate of the last block; it grows linearly from 0.
        shift_every: see :class:`TSM`.
        kwargs: further arguments of ``timm.create_model``.
    """
    if drop_path:  # some timm networks do not accept it
        kwargs["drop_path_rate"] = drop_path
    net = timm.create_model(
        timm_name, pretrained=pretrained, num_classes=num_classes, drop_rate=dropout, **kwargs
    )
    return _tsm(net, shift_every)


# TSM, tables 1 and 5; FFN, tables 1 and 3 (R50, and R18 / R101 on Something-Something V1).


@register_pretrained
def tsm_r18(**kwargs: Any) -> TSM:
    """TSM-ResNet18: 1.8 GMACs per frame at 224."""
    return tsm_of("resnet18", **kwargs)


@register_pretrained
def tsm_r50(**kwargs: Any) -> TSM:
    """TSM-ResNet50: 4.1 GMACs per frame at 224."""
    return tsm_of("resnet50", **kwargs)


@register_pretrained
def tsm_r101(**kwargs: Any) -> TSM:
    """TSM-ResNet101: 7.8 GMACs per frame at 224."""
    return tsm_of("resnet101", **kwargs)


@register_pretrained
def tsm_r101_alternate(**kwargs: Any) -> TSM:
    """TSM-ResNet101 of TSM's authors and MMAction2, with a shift in every second block."""
    return tsm_of("resnet101", shift_every=2, **kwargs)


@register_pretrained
def tsm_mobilenetv2(**kwargs: Any) -> TSM:
    """TSM-MobileNetV2, the paper's network for edge devices: 0.3 GMACs per frame at 224."""
    return tsm_of("mobilenetv2_100", **kwargs)


@register
def tsm_tiny(*, num_classes: int = 400, dropout: float = 0.0, width: int = 16) -> TSM:
    """A TSM for CPUs and small frames (32 to 64 px), 0.3 M parameters and 4.4 MMACs per frame.

    Args:
        num_classes: K.
        dropout: probability before the classifier.
        width: channels of the first stage; later stages have 2, 4 and 8 times as many.
    """
    net = ResNet(
        BasicBlock,
        (1, 1, 1, 1),
        num_classes=num_classes,
        drop_rate=dropout,
        zero_init_last=False,  # the shifted branch contributes from the first step
        stem_type="deep",
        stem_width=width // 2,
        channels=(width, 2 * width, 4 * width, 8 * width),
    )
    net.maxpool = nn.Identity()  # frames are small already
    return _tsm(net)
