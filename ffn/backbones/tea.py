"""TEA: motion excitation and temporal aggregation in a Res2Net (Li et al., CVPR 2020, 2004.01398).

In every residual block of a timm Res2Net, a gate scales channels by the change of their features
between neighbouring frames. Each group of channels has a convolution over time before its spatial
one. Logits are averaged over the frames.
"""

from __future__ import annotations

from typing import Any

import timm
import torch
from timm.layers import DropPath
from timm.models.res2net import Bottle2neck
from torch import Tensor, nn
from torch.nn import functional as F

from ffn.backbones.registry import register, register_family
from ffn.backbones.tsm import tiny_resnet
from ffn.layers import HEAD_STD, AlterationSite, ClipLength, Past, PerFrame, init_classifier


class MotionExcitation(nn.Module):
    """Scale channels by the change of their features to the next frame (paper, §3.1).

    Args:
        channels: C.
        length: holds the clip's T; the model sets it.
        reduction: differences are computed on C / reduction channels.
        causal: scale by the change from the frame before.
    """

    def __init__(
        self, channels: int, length: ClipLength, reduction: int = 16, *, causal: bool = False
    ) -> None:
        super().__init__()
        self.past = Past(length, 1) if causal else None
        squeezed = max(1, channels // reduction)
        self.length = length
        self.conv1 = nn.Conv2d(channels, squeezed, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(squeezed)
        self.conv2 = nn.Conv2d(squeezed, squeezed, 3, padding=1, groups=squeezed, bias=False)
        self.conv3 = nn.Conv2d(squeezed, channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to the same shape."""
        gate = self.gate(x)
        if x.requires_grad:  # the backward pass of one operation would need more memory
            return x + x * gate
        return torch.addcmul(x, x, gate)

    def gate(self, x: Tensor) -> Tensor:
        """Change of the scale, -0.5 to 0.5: (N, C, 1, 1).

        There is no motion in the last frame, or if it is causal, in the first.
        """
        squeezed = self.bn1(self.conv1(x))
        given, following = self._means(squeezed), self._means(self.conv2(squeezed))

        if self.past is None:
            motion = F.pad(following[:, 1:] - given[:, :-1], (0, 0, 0, 1))
        else:
            is_frame = torch.ones_like(given[..., :1])
            before = self.past(torch.cat([given, is_frame], 2))[:, :-1]
            motion = (following - before[..., :-1]) * before[..., -1:]
        motion = motion.flatten(0, 1)[:, :, None, None]

        return torch.sigmoid(self.bn3(self.conv3(motion))) - 0.5

    def _means(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)).unflatten(0, (-1, self.length.frames))  # (B, T, C)


class TemporalConv(nn.Module):
    """A depthwise convolution over three frames of a clip, zero-padded.

    Args:
        channels: C.
        length: holds the clip's T; the model sets it.
        shifted: initialize as a shift of half of the channels each way; else as the identity.
        causal: over a frame and the two before it.
    """

    def __init__(
        self, channels: int, length: ClipLength, *, shifted: bool, causal: bool = False
    ) -> None:
        super().__init__()
        self.length, self.past = length, Past(length, 2) if causal else None
        pad = 0 if causal else 1
        self.conv = _OverTime(channels, channels, 3, padding=pad, groups=channels, bias=False)
        half = channels // 2 if shifted else 0
        with torch.no_grad():
            self.conv.weight.zero_()
            self.conv.weight[:half, 0, 2] = 1  # from the next frame; if causal, its own
            self.conv.weight[half : 2 * half, 0, 1 - pad] = 1  # from the previous frame
            self.conv.weight[2 * half :, 0, 2 - pad] = 1

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to the same shape."""
        x = x.unflatten(0, (-1, self.length.frames))  # (B, T, C, H, W)
        x = x if self.past is None else self.past(x)
        return self.conv(x.transpose(1, 2)).transpose(1, 2).flatten(0, 1)


class _OverTime(nn.Conv1d):
    """A 1-D convolution over the T of a clip (B, C, T, H, W), as the faster 2-D one."""

    def forward(self, x: Tensor) -> Tensor:
        (pad,) = self.padding
        weight = self.weight[..., None]  # (C, 1, 3, 1)
        x, area = _as_images(x.flatten(3)), x.shape[3:]  # (B, C, T, H * W)
        x = F.conv2d(x, weight, self.bias, padding=(pad, 0), groups=self.groups)
        return x.unflatten(3, area)


def _as_images(x: Tensor) -> Tensor:
    """A channels-last tensor (B, C, T, P), or a slice, with strides by which torch recognizes it.

    A batch of 1 may have any first stride; torch then computes in the default layout, up to eight
    times as long.
    """
    is_eager = not (torch.compiler.is_compiling() or torch.jit.is_tracing())
    if is_eager and len(x) == 1 and x.stride(1) == 1:
        return x.movedim(1, -1).flatten().view(1, *x.shape[2:], x.shape[1]).movedim(-1, 1)
    return x


class MotionBlock(Bottle2neck):
    """Res2Net's block with motion excitation and temporal convolutions; it keeps timm's keys.

    Args:
        block: the block to replace; its weights are shared, not copied.
        length: holds the clip's T; the model sets it.
        drop_path: stochastic depth rate.
        causal: read no later frames.
    """

    def __init__(
        self, block: Bottle2neck, length: ClipLength, drop_path: float = 0.0, causal: bool = False
    ) -> None:
        nn.Module.__init__(self)  # attributes and layers are those of the given block
        self.__dict__.update({k: v for k, v in block.__dict__.items() if not k.startswith("_")})
        for name, child in block.named_children():
            self.add_module(name, child)
        self.drop_path = DropPath(drop_path)  # timm's Res2Net has it since 1.0.31 only
        self.site = AlterationSite(self.conv1.in_channels, optional=True)
        self.me = MotionExcitation(self.conv1.out_channels, length, causal=causal)
        last = self.scale - 1
        self.shifts = nn.ModuleList(
            TemporalConv(self.width, length, shifted=index == last, causal=causal)
            for index in range(self.scale)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C', H', W')."""
        shortcut = x if self.downsample is None else self.downsample(x)

        x = self.me(self.relu(self.bn1(self.conv1(self.site(x)))))
        groups = torch.split(x, self.width, 1)  # the last has no spatial convolution
        *shifts, last_shift = self.shifts
        done: list[Tensor] = []
        for number, (shift, conv, bn) in enumerate(zip(shifts, self.convs, self.bns, strict=True)):
            group = groups[number]  # by its index, which torch.fx can follow
            if done and not self.is_first:
                group = group + done[-1]
            done.append(self.relu(bn(conv(shift(group)))))
        last = last_shift(groups[len(shifts)])
        done.append(last if self.pool is None else self.pool(last))

        x = self.bn3(self.conv3(torch.cat(done, 1)))
        x = x if self.se is None else self.se(x)

        return self.relu(self.drop_path(x) + shortcut)


class TEA(PerFrame):
    """A timm Res2Net with motion excitation and temporal aggregation, for clips of any length.

    Args:
        net: changed in place. Its state-dict keys do not change.
        drop_path: stochastic depth rate of the last block; it grows linearly from 0.
        causal: read no later frames, for streams.

    Raises:
        ValueError: ``net`` has no Res2Net block of two scales or more.
    """

    def __init__(self, net: nn.Module, drop_path: float = 0.0, *, causal: bool = False) -> None:
        super().__init__(net, causal=causal)
        blocks = {name: m for name, m in net.named_modules() if isinstance(m, Bottle2neck)}
        if not blocks or any(block.scale < 2 for block in blocks.values()):
            raise ValueError(
                f"{type(net).__name__} has no Res2Net blocks; choose a Res2Net of timm such as "
                "res2net50_26w_4s or res2net101_26w_4s"
            )
        for index, (name, block) in enumerate(blocks.items()):
            rate = drop_path * index / max(1, len(blocks) - 1)
            net.set_submodule(name, MotionBlock(block, self.length, rate, causal))


def _tea(net: nn.Module, **options: Any) -> TEA:
    init_classifier(net.get_classifier(), HEAD_STD)
    model = TEA(net, **options)
    for module in model.modules():
        if isinstance(module, MotionExcitation):
            for conv in (module.conv1, module.conv2, module.conv3):
                nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return model


@register_family("tea")
def tea_of(
    timm_name: str,
    *,
    num_classes: int = 400,
    pretrained: bool = False,
    dropout: float = 0.5,
    drop_path: float = 0.0,
    causal: bool = False,
    **kwargs: Any,
) -> TEA:
    """TEA inside a timm Res2Net, as ``res2net50_26w_4s``; arguments as :func:`tsm_of`.

    Layers of TEA and the classifier are new, also with ``pretrained``.
    """
    net = timm.create_model(
        timm_name, pretrained=pretrained, num_classes=num_classes, drop_rate=dropout, **kwargs
    )
    return _tea(net, drop_path=drop_path, causal=causal)


# TEA, table 1; FFN, table 3, trains tea_r50 on Something-Something V1.


@register
def tea_r50(**kwargs: Any) -> TEA:
    """TEA-Res2Net50 26w x 4s: 4.4 GMACs per frame at 224."""
    return tea_of("res2net50_26w_4s", **kwargs)


@register
def tea_tiny(
    *, num_classes: int = 400, dropout: float = 0.0, width: int = 8, causal: bool = False
) -> TEA:
    """A TEA for CPUs and small frames (24 to 64 px).

    The stages return 4, 8, 16 and 32 times ``width`` channels.
    """
    net = tiny_resnet(
        Bottle2neck,
        width,
        num_classes=num_classes,
        drop_rate=dropout,
        base_width=26,
        block_args={"scale": 4},
    )
    return _tea(net, causal=causal)
