"""SlowFast networks (Feichtenhofer et al., ICCV 2019, 1812.03982), and the slow pathway alone.

Two 3-D ResNets process one clip: the slow pathway has few frames and many channels, the fast
pathway all T frames and few channels. Before every stage, features of the fast pathway are
concatenated to those of the slow pathway. The model selects the slow frames from the clip.
Left out: non-local blocks, dilated stages for detection, and basic blocks (R18, R34).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ffn.backbones.registry import register
from ffn.layers import AlterationSite, PooledClassifier, check_clip


def slow_frames(
    frames: int, alpha: int, *, spread: bool = True, device: torch.device | None = None
) -> Tensor:
    """Indices of the n = ceil(T / alpha) frames of the slow pathway.

    Args:
        frames: T.
        alpha: frames of the fast pathway per frame of the slow one.
        spread: the rule of PySlowFast, floor(i (T - 1) / (n - 1)) for i = 0 … n - 1 in exact
            fractions: it includes the first and the last frame; a single frame is the first. False:
            the rule of MMAction2, i alpha.
        device: of the result.

    Example:
        >>> slow_frames(16, 4)
        tensor([ 0,  5, 10, 15])
        >>> slow_frames(16, 4, spread=False)
        tensor([ 0,  4,  8, 12])
    """
    frames = int(frames) if isinstance(frames, Tensor) else frames  # torch.jit.trace gives a tensor
    last = (frames - 1) // alpha  # written as the length after a strided convolution
    index = torch.arange(last + 1, device=device)
    steps = last + 1 // (last + 1)  # max(last, 1); torch 2.6 does not compile sym_max
    return index * (frames - 1) // steps if spread else index * alpha


class Bottleneck(nn.Module):
    """Residual block: k x 1 x 1 over time, 1 x 3 x 3 over space, 1 x 1 x 1 (paper, table 1).

    Args:
        channels: input channels.
        inner: channels inside the block; four times as many are returned.
        kernel: k, frames that the first convolution spans.
        stride: spatial stride.
    """

    expansion = 4

    def __init__(self, channels: int, inner: int, *, kernel: int, stride: int) -> None:
        super().__init__()
        out = self.expansion * inner
        self.site = AlterationSite(channels)
        self.conv1 = _conv(channels, inner, (kernel, 1, 1))
        self.bn1 = nn.BatchNorm3d(inner)
        self.conv2 = _conv(inner, inner, (1, 3, 3), (1, stride, stride))
        self.bn2 = nn.BatchNorm3d(inner)
        self.conv3 = _conv(inner, out, (1, 1, 1))
        self.bn3 = nn.BatchNorm3d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            conv = _conv(channels, out, (1, 1, 1), (1, stride, stride))
            self.downsample = nn.Sequential(conv, nn.BatchNorm3d(out))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T, H, W) to (B, 4 * inner, T, H / stride, W / stride)."""
        shortcut = self.downsample(x)

        x = self.relu(self.bn1(self.conv1(self.site(x))))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))

        return self.relu(x + shortcut)


class Stem(nn.Sequential):
    """k x 7 x 7 convolution of stride 2 over space, norm, ReLU, spatial max-pooling.

    Args:
        width: output channels.
        kernel: k, frames that it spans.
        pool: halve the feature map again by max-pooling, as for frames of 224 px.
    """

    def __init__(self, width: int, *, kernel: int, pool: bool) -> None:
        super().__init__()
        self.conv1 = _conv(3, width, (kernel, 7, 7), (1, 2, 2))
        self.bn1 = nn.BatchNorm3d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1)) if pool else nn.Identity()


class Pathway(nn.Module):
    """A stem and four stages of bottlenecks, without temporal stride.

    Args:
        width: channels of the stem; the stages return 4, 8, 16 and 32 times as many.
        stem_kernel: frames that the stem spans.
        kernels: frames that the first convolution of a block spans, per stage.
        depths: blocks per stage.
        joined: channels that another pathway adds before each stage.
        temporal_depth: blocks of a stage beyond this number have kernel 1 (R101).
        pool: see :class:`Stem`.
    """

    def __init__(
        self,
        width: int,
        *,
        stem_kernel: int,
        kernels: Sequence[int],
        depths: Sequence[int],
        joined: Sequence[int] = (0, 0, 0, 0),
        temporal_depth: int = 6,
        pool: bool = True,
    ) -> None:
        super().__init__()
        self.stem = Stem(width, kernel=stem_kernel, pool=pool)
        self.stages = nn.ModuleList()
        channels, inner = width, width
        for stage, (depth, kernel, extra) in enumerate(zip(depths, kernels, joined, strict=True)):
            blocks, channels = [], channels + extra
            for index in range(depth):
                span = kernel if index < temporal_depth else 1
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Bottleneck(channels, inner, kernel=span, stride=stride))
                channels = Bottleneck.expansion * inner
            self.stages.append(nn.Sequential(*blocks))
            inner *= 2
        self.channels = channels


class Fusion(nn.Sequential):
    """Lateral connection: a convolution over time with stride alpha, T to ceil(T / alpha).

    Args:
        channels: of the fast pathway.
        out: channels that it adds to the slow pathway.
        kernel: frames that it spans, odd.
        alpha: frames of the fast pathway per frame of the slow one.
        norm: with norm and ReLU after the convolution.
    """

    def __init__(
        self, channels: int, out: int, *, kernel: int, alpha: int, norm: bool = True
    ) -> None:
        super().__init__()
        self.conv = _conv(channels, out, (kernel, 1, 1), (alpha, 1, 1))
        if norm:
            self.bn = nn.BatchNorm3d(out)
            self.relu = nn.ReLU(inplace=True)


class SlowFast(PooledClassifier):
    """Slow and fast pathway over one clip of any length.

    The features are averaged over the whole map. On a map larger than in training, PySlowFast
    averages the probabilities of all windows of the training size instead.

    Args:
        num_classes: K.
        depths: blocks per stage, of both pathways.
        alpha: the slow pathway processes ceil(T / alpha) of the T frames.
        beta_inverse: ratio of the slow pathway's channels to the fast one's.
        fusion_ratio: ratio of a lateral connection's output channels to its input channels.
        fusion_kernel: frames that a lateral connection spans, odd.
        fusion_norm: lateral connections have norm and ReLU (not in MMAction2).
        spread: the rule of the slow frames, see :func:`slow_frames`.
        width: channels of the slow pathway's stem.
        dropout: probability before the classifier.
        pool: see :class:`Stem`.
        zero_init_last: initialize the weight of every block's last norm with zero.

    Raises:
        ValueError: ``fusion_kernel`` is even, or ``beta_inverse`` does not divide ``width``.
    """

    def __init__(
        self,
        num_classes: int = 400,
        depths: Sequence[int] = (3, 4, 6, 3),
        *,
        alpha: int = 4,
        beta_inverse: int = 8,
        fusion_ratio: int = 2,
        fusion_kernel: int = 7,
        fusion_norm: bool = True,
        spread: bool = True,
        width: int = 64,
        dropout: float = 0.5,
        pool: bool = True,
        zero_init_last: bool = True,
    ) -> None:
        super().__init__()
        if fusion_kernel % 2 == 0 or width % beta_inverse:
            raise ValueError(
                f"fusion_kernel is {fusion_kernel}, width {width}, beta_inverse {beta_inverse}; "
                "expected an odd kernel and a width that beta_inverse divides"
            )
        thin = width // beta_inverse
        fast = [thin, 4 * thin, 8 * thin, 16 * thin]  # channels of the fast pathway at each fusion
        self.alpha, self.spread = alpha, spread
        self.slow = Pathway(
            width,
            stem_kernel=1,
            kernels=(1, 1, 3, 3),
            depths=depths,
            joined=[fusion_ratio * channels for channels in fast],
            pool=pool,
        )
        self.fast = Pathway(thin, stem_kernel=5, kernels=(3, 3, 3, 3), depths=depths, pool=pool)
        self.fusions = nn.ModuleList(
            Fusion(c, fusion_ratio * c, kernel=fusion_kernel, alpha=alpha, norm=fusion_norm)
            for c in fast
        )
        self.add_classifier(self.slow.channels + self.fast.channels, num_classes, dropout)
        _init(self, zero_init_last)

    def forward_features(self, clip: Tensor) -> tuple[Tensor, Tensor]:
        """The last feature maps of both pathways.

        Args:
            clip: (B, C, T, H, W) of any T: the frames of the fast pathway.

        Returns:
            (B, C, ceil(T / alpha), H, W) of the slow and (B, C', T, H, W) of the fast pathway, with
            C + C' = ``num_features``.
        """
        check_clip(clip, 3)
        frames = slow_frames(clip.shape[2], self.alpha, spread=self.spread, device=clip.device)
        slow = clip[:, :, frames]

        slow, fast = self.slow.stem(slow), self.fast.stem(clip)
        for stage, fusion in enumerate(self.fusions):
            slow = torch.cat([slow, fusion(fast)], 1)
            slow, fast = self.slow.stages[stage](slow), self.fast.stages[stage](fast)

        return slow, fast

    def pool(self, features: tuple[Tensor, Tensor]) -> Tensor:
        """The averages (B, C) of the maps of both pathways, concatenated."""
        return torch.cat([x.mean((2, 3, 4)) for x in features], 1)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Patterns of parameter names per layer, as in timm; ``coarse``: stages, not blocks.

        Blocks at the same position of both pathways are one layer. A lateral connection belongs to
        the first block after it.
        """
        block = r"" if coarse else r"\.(\d+)"
        return {
            "stem": r"(?:slow|fast)\.stem",
            "blocks": [
                (rf"(?:slow|fast)\.stages\.(\d+){block}", None),
                (r"fusions\.(\d+)", None if coarse else (0,)),
            ],
        }


class SinglePathway(PooledClassifier):
    """A network of one pathway, such as SlowOnly.

    Args:
        pathway: the 3-D ResNet.
        num_classes: K.
        dropout: probability before the classifier.
    """

    def __init__(self, pathway: Pathway, num_classes: int = 400, *, dropout: float = 0.5) -> None:
        super().__init__()
        self.pathway = pathway
        self.add_classifier(pathway.channels, num_classes, dropout)
        _init(self, zero_init_last=True)

    def forward_features(self, clip: Tensor) -> Tensor:
        """The last feature map (B, C, T, H, W) of clips of any T."""
        check_clip(clip, 3)
        x = self.pathway.stem(clip)

        for stage in self.pathway.stages:
            x = stage(x)

        return x

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Patterns of parameter names per layer, as in timm; ``coarse``: stages, not blocks."""
        block = r"" if coarse else r"\.(\d+)"
        return {"stem": r"pathway\.stem", "blocks": rf"pathway\.stages\.(\d+){block}"}


def _conv(
    channels: int,
    out: int,
    kernel: tuple[int, int, int],
    stride: tuple[int, int, int] = (1, 1, 1),
) -> nn.Conv3d:
    padding = tuple(size // 2 for size in kernel)
    return nn.Conv3d(channels, out, kernel, stride, padding, bias=False)


def _init(model: nn.Module, zero_init_last: bool) -> None:
    """Kaiming for convolutions, N(0, 0.01) for the classifier, as the paper's §4."""
    for module in model.modules():
        if isinstance(module, nn.Conv3d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
        elif isinstance(module, Bottleneck) and zero_init_last:
            nn.init.zeros_(module.bn3.weight)


R50, R101 = (3, 4, 6, 3), (3, 4, 23, 3)

# SlowFast, table 2: "T x tau" is the number of frames of the slow pathway and their distance at 30
# fps; the clip has alpha times as many. FFN, table 3, trains slowfast_r50 at 16, 32 and 64 frames.


@register
def slowfast_r50(**kwargs: Any) -> SlowFast:
    """SlowFast 16x8, R50, as in the FFN paper: 64 frames, alpha 4."""
    return SlowFast(depths=R50, **kwargs)


@register
def slowfast_r50_8x8(**kwargs: Any) -> SlowFast:
    """SlowFast 8x8, R50: 32 frames, alpha 4. The same network as 16x8."""
    return SlowFast(depths=R50, **kwargs)


@register
def slowfast_r50_4x16(**kwargs: Any) -> SlowFast:
    """SlowFast 4x16, R50: 32 frames, alpha 8."""
    return SlowFast(depths=R50, alpha=8, fusion_kernel=5, **kwargs)


@register
def slowfast_r50_8x8_mmaction2(**kwargs: Any) -> SlowFast:
    """SlowFast 8x8, R50, as in MMAction2: no norms in the fusions, other slow frames."""
    return SlowFast(depths=R50, fusion_norm=False, spread=False, **kwargs)


@register
def slowfast_r50_4x16_mmaction2(**kwargs: Any) -> SlowFast:
    """SlowFast 4x16, R50, as in MMAction2."""
    return SlowFast(depths=R50, alpha=8, fusion_kernel=5, fusion_norm=False, spread=False, **kwargs)


@register
def slowfast_r101(**kwargs: Any) -> SlowFast:
    """SlowFast 16x8, R101: 64 frames, alpha 4."""
    return SlowFast(depths=R101, fusion_kernel=5, **kwargs)


@register
def slowonly_r50(*, num_classes: int = 400, dropout: float = 0.5) -> SinglePathway:
    """The slow pathway alone (SlowFast, table 5a): 8 frames."""
    pathway = Pathway(64, stem_kernel=1, kernels=(1, 1, 3, 3), depths=R50)
    return SinglePathway(pathway, num_classes, dropout=dropout)


@register
def slowfast_tiny(*, num_classes: int = 400, dropout: float = 0.0, width: int = 16) -> SlowFast:
    """A SlowFast for CPUs and frames of 24 to 64 px; alpha 2, fast pathway 1/4 as wide."""
    return SlowFast(
        num_classes,
        (1, 1, 1, 1),
        alpha=2,
        beta_inverse=4,
        fusion_kernel=5,
        width=width,
        dropout=dropout,
        pool=False,
        zero_init_last=False,
    )
