"""UniFormer (Li et al., ICLR 2022, 2201.04676): two convolutional stages, two attention stages.

Blocks of the first two stages have a depthwise convolution over neighbours, blocks of the others
attention over all positions in space and time. Position embeddings are depthwise convolutions, so T
is arbitrary. The first embedding halves T.
Left out: attention over time and then over space (§4.4), the token-shrinking "light" models, and
UniFormerV2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from einops import rearrange
from timm.layers import DropPath, trunc_normal_
from torch import Tensor, nn
from torch.nn import functional as F

from ffn.backbones.registry import register
from ffn.clips import check_sides, is_exporting
from ffn.layers import AlterationSite, PooledClassifier, check_clip

_pointwise = partial(nn.Conv3d, kernel_size=1)


class Embedding(nn.Module):
    """A strided convolution and a LayerNorm over channels.

    Args:
        channels: input channels.
        dim: output channels.
        patch: stride over space, and kernel.
        halve_time: also take T to ceil(T / 2), with a kernel of three frames.
    """

    def __init__(self, channels: int, dim: int, *, patch: int, halve_time: bool = False) -> None:
        super().__init__()
        span, step = (3, 2) if halve_time else (1, 1)
        self.proj = nn.Conv3d(
            channels, dim, (span, patch, patch), (step, patch, patch), (span // 2, 0, 0)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T, H, W) to (B, C', T', H / patch, W / patch)."""
        x = self.proj(x).movedim(1, -1)  # (B, T, H, W, C)
        return self.norm(x).movedim(-1, 1)


class Mlp(nn.Sequential):
    """Two linear maps of the channels with an exact GELU between them.

    Args:
        dim: input and output channels.
        hidden: channels between them.
        linear: the layer, from (channels in, channels out).
    """

    def __init__(self, dim: int, hidden: int, linear: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.fc1 = linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = linear(hidden, dim)


class LocalBlock(nn.Module):
    """Position embedding, depthwise convolution (5 x 5 x 5), MLP (paper §3.2).

    Args:
        dim: channels.
        mlp_ratio: hidden channels of the MLP over ``dim``.
        drop_path: stochastic depth rate.
    """

    def __init__(self, dim: int, *, mlp_ratio: float = 4.0, drop_path: float = 0.0) -> None:
        super().__init__()
        self.site = AlterationSite(dim)
        self.pos_embed = nn.Conv3d(dim, dim, 3, padding=1, groups=dim)
        self.norm1 = nn.BatchNorm3d(dim)
        self.conv1 = _pointwise(dim, dim)
        self.attn = nn.Conv3d(dim, dim, 5, padding=2, groups=dim)
        self.conv2 = _pointwise(dim, dim)
        self.norm2 = nn.BatchNorm3d(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), _pointwise)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T, H, W) to the same shape."""
        x = self.site(x)  # before the shortcuts, as in the reference
        x = x + self.pos_embed(x)

        x = x + self.drop_path(self.conv2(self.attn(self.conv1(self.norm1(x)))))

        return x + self.drop_path(self.mlp(self.norm2(x)))


class Attention(nn.Module):
    """Multi-head self-attention over tokens.

    Args:
        dim: channels of a token.
        heads: number of heads; divides ``dim``.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(…, N, C) to the same shape; attention over the N tokens."""
        q, k, v = rearrange(self.qkv(x), "... n (qkv h c) -> qkv ... h n c", qkv=3, h=self.heads)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(rearrange(x, "... h n c -> ... n (h c)"))


class GlobalBlock(nn.Module):
    """Position embedding, attention over all positions in space and time, MLP (paper §3.2).

    Args:
        dim: channels.
        heads: of the attention.
        mlp_ratio: hidden channels of the MLP over ``dim``.
        drop_path: stochastic depth rate.
    """

    def __init__(
        self, dim: int, heads: int, *, mlp_ratio: float = 4.0, drop_path: float = 0.0
    ) -> None:
        super().__init__()
        self.site = AlterationSite(dim)
        self.pos_embed = nn.Conv3d(dim, dim, 3, padding=1, groups=dim)
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), nn.Linear)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T, H, W) to the same shape."""
        x = self.site(x)
        x = x + self.pos_embed(x)
        batch, channels, frames, *size = x.shape

        x = x.flatten(2).transpose(1, 2)  # (B, T * H * W, C)
        # In one piece, so that torch.export need not prove how maps of one pixel can be viewed.
        x = x.contiguous() if is_exporting() else x
        x = x + self.drop_path(self.attn(self.norm1(x)))
        x = x + self.drop_path(self.mlp(self.norm2(x)))

        if is_exporting():
            # Through one dimension, so that torch.export need not prove that a T that may vary
            # divides the number of tokens.
            x = x.flatten().view(-1, math.prod(size) * channels)  # (B * T, H * W * C)
            return x.unflatten(0, (batch, -1)).unflatten(-1, (*size, channels)).movedim(-1, 1)
        return x.transpose(1, 2).unflatten(2, (frames, *size))


class UniFormer(PooledClassifier):
    """Two stages of local blocks and two of global blocks, for clips of any length.

    Args:
        num_classes: K.
        depths: blocks per stage.
        dims: channels per stage.
        head_dim: channels of an attention head; divides the last two of ``dims``.
        mlp_ratio: hidden channels of an MLP over those of its block.
        patch: stride of the first embedding; the other strides are 2.
        dropout: probability before the classifier.
        drop_path: stochastic depth rate of the last block; it grows linearly from 0.

    Raises:
        ValueError: ``head_dim`` does not divide the channels of an attention.
    """

    head_std = 0.02

    def __init__(
        self,
        num_classes: int = 400,
        depths: Sequence[int] = (3, 4, 8, 3),
        *,
        dims: Sequence[int] = (64, 128, 320, 512),
        head_dim: int = 64,
        mlp_ratio: float = 4.0,
        patch: int = 4,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        if any(dim % head_dim for dim in dims[2:]):
            raise ValueError(f"head_dim is {head_dim}; it must divide {dims[2]} and {dims[3]}")
        total = sum(depths)
        rates = iter(drop_path * index / max(1, total - 1) for index in range(total))
        self.patch, self.head_dim = patch, head_dim
        self.embeds = nn.ModuleList([Embedding(3, dims[0], patch=patch, halve_time=True)])
        self.embeds.extend(Embedding(a, b, patch=2) for a, b in itertools.pairwise(dims))
        self.blocks = nn.ModuleList()
        for stage, (dim, depth) in enumerate(zip(dims, depths, strict=True)):
            block = LocalBlock if stage < 2 else partial(GlobalBlock, heads=dim // head_dim)
            made = (block(dim, mlp_ratio=mlp_ratio, drop_path=next(rates)) for _ in range(depth))
            self.blocks.append(nn.Sequential(*made))
        self.norm = nn.BatchNorm3d(dims[-1])
        self.add_classifier(dims[-1], num_classes, dropout)
        _init(self)

    def forward_features(self, clip: Tensor) -> Tensor:
        """The last feature map, after its norm.

        Args:
            clip: (B, C, T, H, W) of any T; H and W are multiples of four patches (16 px), at least
                eight (32 px). If the third feature map has an odd size, the fourth ignores its last
                row and column, as in the reference at 112 px.

        Returns:
            (B, C, ceil(T / 2), H / s, W / s) with s = 8 patches; of an odd size, rounded down.

        Raises:
            ValueError: another rank or size, or T and C are swapped.
        """
        check_clip(clip, 3)
        taker = f"a UniFormer with patches of {self.patch}"
        check_sides(clip, 4 * self.patch, taker, least=2)
        x = clip

        for embed, blocks in zip(self.embeds, self.blocks, strict=True):
            x = blocks(embed(x))

        return self.norm(x)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Patterns of parameter names per layer, as in timm; ``coarse``: stages, not blocks.

        The first embedding is the stem; the others belong to the first block after them.
        """
        block = r"" if coarse else r"\.(\d+)"
        return {
            "stem": r"embeds\.0",
            "blocks": [
                (r"embeds\.(\d+)", None if coarse else (0,)),
                (rf"blocks\.(\d+){block}", None),
            ],
        }


def _init(model: UniFormer) -> None:
    """Truncated N(0, 0.02) for linear layers, as in the authors' code."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            trunc_normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)


# UniFormer, table 1; FFN, table 3, trains uniformer_s on Something-Something V1.


@register
def uniformer_s(**kwargs: Any) -> UniFormer:
    """UniFormer-S: 21 M parameters, 42 GMACs for 16 frames at 224 px."""
    return UniFormer(depths=(3, 4, 8, 3), **kwargs)


@register
def uniformer_b(**kwargs: Any) -> UniFormer:
    """UniFormer-B: 50 M parameters, 97 GMACs for 16 frames at 224 px."""
    return UniFormer(depths=(5, 8, 20, 7), **kwargs)


@register
def uniformer_tiny(*, num_classes: int = 400, dropout: float = 0.0, width: int = 16) -> UniFormer:
    """A UniFormer for CPUs and frames of 24 to 64 px: patches of 2, sides multiples of 8."""
    return UniFormer(
        num_classes,
        (1, 1, 1, 1),
        dims=(width, 2 * width, 3 * width, 4 * width),
        head_dim=width,
        patch=2,
        dropout=dropout,
    )
