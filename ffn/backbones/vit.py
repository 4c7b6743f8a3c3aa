"""Plain vision transformers for videos: the encoders of VideoMAE and of V-JEPA 2.

Tubelets of two frames become tokens, blocks of joint space-time attention mix them (ViViT, model 1,
2103.15691), and a pooling of the tokens is classified. The last frame of an odd number is repeated.
Positions are functions of time and place, so T is arbitrary, in one of two forms:

- ``sine`` (VideoMAE, 2203.12602) is added to the tokens. Clips of any length span the same time, as
  ffn samples them: the position of a tubelet is that of its frames in the span of the training.
- ``rotary`` (V-JEPA 2, 2506.09985) rotates queries and keys by number of tubelet, row and column.
  Longer clips continue the numbers, as in the authors' code.

A causal network for streams has rotary positions, and a tubelet attends to itself and those of a
window before it.
The blocks are timm's. Private LayerNorms scale the inputs of the linear layers behind them; the
other linear layers of a block have alteration sites.
Left out: class tokens, learned positions (InternVideo2) and divided attention (TimeSformer).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from einops import rearrange
from timm.layers import AttentionPoolLatent, apply_rot_embed_cat, trunc_normal_
from timm.models.eva import EvaBlock
from torch import Tensor, nn
from torch.nn import functional as F

from ffn.backbones.registry import register
from ffn.clips import check_sides, varies
from ffn.layers import AlterationSite, Average, ClipLength, Past, PooledClassifier, check_clip

TUBELET = 2  # frames
BASE = 10000  # of the wavelengths


class Block(EvaBlock):
    """timm's block of attention and MLP, with alteration sites before its last linear layers.

    Args:
        dim: channels of a token.
        heads: of the attention; divides ``dim``.
        mlp_ratio: hidden channels of the MLP over ``dim``.
        eps: of the norms.
        drop_path: stochastic depth rate.
    """

    def __init__(
        self, dim: int, heads: int, *, mlp_ratio: float, eps: float, drop_path: float = 0.0
    ) -> None:
        super().__init__(
            dim,
            heads,
            attn_type="rope",
            num_prefix_tokens=0,
            mlp_ratio=mlp_ratio,
            drop_path=drop_path,
            norm_layer=partial(nn.LayerNorm, eps=eps),
        )
        # Where timm has an optional norm.
        self.attn.norm = AlterationSite(dim, -1)
        self.mlp.norm = AlterationSite(self.mlp.fc2.in_features, -1)


class CausalAttention(nn.Module):
    """The attention of a block, to keys and values of tubelets before the clip, too.

    Args:
        given: the attention to replace; its layers and their names are kept.
        past: puts them before those of the clip.
    """

    def __init__(self, given: nn.Module, past: Past) -> None:
        super().__init__()
        self.heads, self.past = given.num_heads, past
        self.qkv, self.norm, self.proj = given.qkv, given.norm, given.proj

    def forward(self, x: Tensor, rope: Tensor, attn_mask: Tensor, **_: Any) -> Tensor:
        """(B, N, C) to the same shape.

        Args:
            x: tokens of the clip.
            rope: positions (tubelets, tokens of each, C), of P tokens before the clip and its own.
            attn_mask: which tokens read which, (B, 1, N, P + N).
        """
        count, area, rope = x.shape[1], rope.shape[1], rope.flatten(0, 1)
        x = self.qkv(x).unflatten(2, (3, self.heads, -1))
        q, kv = x[:, :, 0].transpose(1, 2), x[:, :, 1:]
        kv = self.past(kv.unflatten(1, (-1, area))).flatten(1, 2)
        k, v = kv.permute(2, 0, 3, 1, 4)  # (B, heads, P + N, C / heads)

        q = apply_rot_embed_cat(q, rope[-count:]).type_as(v)
        k = apply_rot_embed_cat(k, rope).type_as(v)
        x = F.scaled_dot_product_attention(q, k, v, attn_mask)

        return self.proj(self.norm(x.transpose(1, 2).flatten(2)))


class AttentivePooler(nn.Module):
    """Blocks without positions, a norm, and attention of one learned query (V-JEPA 2, §4).

    Args:
        dim: channels of a token.
        heads: of each attention.
        depth: number of blocks.
        eps: of the norms.
    """

    def __init__(self, dim: int, heads: int, depth: int, eps: float) -> None:
        super().__init__()
        blocks = (Block(dim, heads, mlp_ratio=4.0, eps=eps) for _ in range(depth))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(dim, eps=eps)
        norm_layer = partial(nn.LayerNorm, eps=eps)
        self.attn = AttentionPoolLatent(dim, num_heads=heads, norm_layer=norm_layer)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) to (B, C)."""
        return self.attn(self.norm(self.blocks(x)))


class ViT(PooledClassifier):
    """A vision transformer for clips of any length; the defaults are those of ViT-B.

    Args:
        num_classes: K.
        dim: channels of a token.
        depth: number of blocks.
        heads: of each attention; divides ``dim``.
        mlp_ratio: hidden channels of an MLP over ``dim``.
        patch: height and width of a tubelet in pixels.
        positions: "sine" or "rotary"; default: sine, or rotary if it is causal.
        grid: tubelets in time, rows and columns in training: the span of the sine positions.
        pool: "mean" and a norm; or, after a norm of all tokens, the "first" one or "attention".
        pool_depth: blocks of the attentive pooling.
        eps: of the norms, and of that after the mean.
        dropout: probability before the classifier.
        drop_path: stochastic depth rate of the last block; it grows linearly from 0.
        causal: tubelets read no later ones, for streams; with rotary positions and the mean.
        past: number of tubelets before one that it reads, if it is causal.

    Raises:
        ValueError: an argument that is not among those allowed.
    """

    head_std = 0.02

    def __init__(
        self,
        num_classes: int = 400,
        dim: int = 768,
        *,
        depth: int = 12,
        heads: int = 12,
        mlp_ratio: float = 4.0,
        patch: int = 16,
        positions: str | None = None,
        grid: Sequence[int] = (8, 14, 14),
        pool: str = "mean",
        pool_depth: int = 0,
        eps: tuple[float, float] = (1e-6, 1e-6),
        dropout: float = 0.0,
        drop_path: float = 0.0,
        causal: bool = False,
        past: int = 7,
    ) -> None:
        super().__init__()
        if dim % (2 * heads):
            raise ValueError(f"heads is {heads}; it must divide {dim} channels into even parts")
        positions = positions or ("rotary" if causal else "sine")
        if positions not in ("sine", "rotary"):
            raise ValueError(f'positions is "{positions}"; expected "sine" or "rotary"')
        if pool not in ("mean", "first", "attention"):
            raise ValueError(f'pool is "{pool}"; expected "mean", "first" or "attention"')
        if causal and past < 1:
            raise ValueError(f"past is {past}; expected 1 or more tubelets")
        if causal and (positions, pool) != ("rotary", "mean"):
            raise ValueError(
                f'causal needs positions="rotary" and pool="mean", not "{positions}" and "{pool}"; '
                "others depend on the frames to come, or on all before"
            )
        self.patch, self.positions, self.grid, self.pooling = patch, positions, tuple(grid), pool
        self.head_dim = dim // heads
        size = (TUBELET, patch, patch)
        self.patch_embed = nn.Conv3d(3, dim, size, size)
        rates = (drop_path * index / max(1, depth - 1) for index in range(depth))
        block = partial(Block, dim, heads, mlp_ratio=mlp_ratio, eps=eps[0])
        self.blocks = nn.ModuleList([block(drop_path=rate) for rate in rates])
        is_mean = pool == "mean"
        self.norm = nn.Identity() if is_mean else nn.LayerNorm(dim, eps=eps[0])
        self.fc_norm = nn.LayerNorm(dim, eps=eps[1]) if is_mean else nn.Identity()
        if pool == "attention":
            self.pooler = AttentivePooler(dim, heads, pool_depth, eps[0])
        self.causal, self.length = causal, ClipLength()
        self.average = Average(self.length, TUBELET)
        if causal:
            self.frame, self.is_second = Past(self.length, 1), Past(self.length, 1)
            self.is_tubelet = Past(self.length, past)
            for one in self.blocks:
                one.attn = CausalAttention(one.attn, Past(self.length, past))
        self.add_classifier(dim, num_classes, dropout)
        for layer in (m for m in self.modules() if isinstance(m, nn.Linear)):
            trunc_normal_(layer.weight, std=0.02)  # as the authors
            nn.init.zeros_(layer.bias)

    def forward_features(self, clip: Tensor) -> Tensor:
        """The tokens after the last block, and after their norm if there is one.

        Args:
            clip: (B, C, T, H, W) of any T; H and W are multiples of a patch.

        Returns:
            (B, C, ceil(T / 2), H / patch, W / patch)

        Raises:
            ValueError: another rank or size, or T and C are swapped.
        """
        check_clip(clip, 3)
        check_sides(clip, self.patch, f"a ViT with patches of {self.patch}")
        frames = clip.shape[2]
        if varies(frames) or frames % TUBELET:  # the convolution leaves out a frame beyond
            clip = torch.cat([clip, clip[:, :, -1:]], 2)

        x = self.patch_embed(clip)
        shape = x.shape[2:]
        x = x.flatten(2).transpose(1, 2)  # (B, T * H * W, C)
        options: dict[str, Tensor] = {}
        if self.positions == "rotary":
            past = self.is_tubelet.frames if self.causal else 0
            rope = rotary_positions(shape, self.head_dim, x.device, past)
            area = math.prod(shape[1:])
            options["rope"] = rope.unflatten(0, (-1, area)) if self.causal else rope
        else:
            x = x + sine_positions(frames, shape, self.grid, x.shape[2], x.device).to(x)
        if self.causal:
            options["attn_mask"] = self._mask(x, shape)

        for block in self.blocks:
            x = block(x, **options)

        return self.norm(x).transpose(1, 2).unflatten(2, shape)

    def _mask(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Which tokens read which, of the past and the clip: (B, 1, N, P + N)."""
        past, (steps, *area) = self.is_tubelet.frames, shape
        is_there = self.is_tubelet(x.new_ones(x.shape[0], steps)) > 0  # (B, past + T)
        ages = [torch.arange(size, device=x.device) for size in (steps, past + steps)]
        age = ages[0][:, None] + past - ages[1]
        mask = (age >= 0) & (age <= past) & is_there[:, None]
        tokens = math.prod(area)
        return mask.repeat_interleave(tokens, 1).repeat_interleave(tokens, 2)[:, None]

    def forward(self, clip: Tensor) -> Tensor:
        """Classify clips (B, C, T, H, W) of any T, or the next frame of streams: logits (B, K)."""
        stream = self.length.stream
        if stream is None:
            return super().forward(clip)
        # A frame that is the first of a tubelet is repeated, and forgotten but for the second.
        frames = self.frame(clip.transpose(1, 2))  # (B, 2, C, H, W)
        is_second = stream.get(self.is_second, clip.new_zeros(clip.shape[0], 1)) > 0
        frames = torch.where(is_second[..., None, None, None], frames, frames[:, 1:])
        kept = dict(stream)
        logits = super().forward(frames.transpose(1, 2))
        for module, state in [*stream.items()]:
            is_new = is_second.view(-1, *[1] * (state.ndim - 1))
            before = kept.get(module, torch.zeros_like(state))
            stream[module] = torch.where(is_new, state, before)
        stream[self.frame], stream[self.is_second] = kept[self.frame], (~is_second).to(clip.dtype)
        return logits

    def pool(self, features: Tensor) -> Tensor:
        """The classifier's input (B, C) of tokens (B, C, T, H, W)."""
        if self.pooling == "first":
            return features[:, :, 0, 0, 0]
        if self.pooling == "attention":
            return self.pooler(features.flatten(2).transpose(1, 2))
        means = features.mean((3, 4)).transpose(1, 2)  # (B, T, C)
        return self.fc_norm(self.average(means).to(features.dtype))

    def frame_features(self, features: Tensor) -> Tensor:
        """Averages over space alone (B, ceil(T / 2), C), after a norm."""
        return self.dropout(self.fc_norm(features.mean((3, 4)).transpose(1, 2)))

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Patterns of parameter names per layer, as in timm; ``coarse`` has no effect."""
        return {"stem": r"patch_embed", "blocks": [(r"blocks\.(\d+)", None)]}


def sine_positions(
    frames: int, shape: Sequence[int], grid: Sequence[int], dim: int, device: torch.device
) -> Tensor:
    """Positions (T * H * W, C) to be added to tokens, in float64.

    On the grid of the training, they are VideoMAE's table: channels 2i and 2i + 1 of the token with
    the index p are sin and cos of p / 10000^(2i / C). Between its points, they are interpolated:
    the sines of an index between two tubelets would be close to those of another row.

    Args:
        frames: T of the clip, 2 or 1 per tubelet.
        shape: tubelets in time, rows, columns of the clip.
        grid: those of the training.
        dim: C.
        device: of the result.
    """
    steps, (trained, rows, columns) = shape[0], grid
    if device.type == "mps":  # without float64
        device = torch.device("cpu")
    numbers = partial(torch.arange, device=device, dtype=torch.float64)
    # The middle of a tubelet's frames: 1, 3, 5, …; T - 1/2 for a last one of one frame.
    middle = (TUBELET * numbers(steps) + 1).clamp(max=frames - 0.5)
    place = middle * trained / frames - 0.5
    before = place.floor()

    rate = BASE ** (-numbers(0, dim, 2) / dim)
    area = rows * columns
    index = torch.stack([before, before + 1])[..., None] * area + numbers(area)
    angle = index[..., None] * rate  # (2, T, H * W, C / 2)
    both = torch.stack([angle.sin(), angle.cos()], -1).flatten(3)
    x = both[0].lerp(both[1], (place - before)[:, None, None])
    if tuple(shape[1:]) != (rows, columns):
        x = rearrange(x, "t (h w) c -> t c h w", h=rows)
        x = F.interpolate(x, tuple(shape[1:]), mode="bilinear")
        x = rearrange(x, "t c h w -> t (h w) c")
    return x.flatten(0, 1)


def rotary_positions(
    shape: Sequence[int], head_dim: int, device: torch.device, past: int = 0
) -> Tensor:
    """Sines and cosines (T * H * W, 2 * head_dim) that rotate queries and keys.

    Equal parts of a head's channels are for tubelet, row and column; the rest is not rotated.

    As in V-JEPA 2, the channels of a pair are neighbors, but the frequencies of a part are in a
    row, twice: the two channels have different angles. With a past, they have the same one, and
    attention depends on differences of positions alone.

    Args:
        shape: tubelets in time, rows, columns.
        head_dim: channels of a head.
        device: of the result.
        past: tubelets before the first, whose positions come before.
    """
    pairs = head_dim // 6
    starts = (-past, 0, 0)
    axes = [
        torch.arange(start, size, device=device, dtype=torch.float32)
        for start, size in zip(starts, shape, strict=True)
    ]
    place = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, 2)  # (N, 3)
    rate = BASE ** (-torch.arange(pairs, device=device) / pairs)
    rates = rate.repeat_interleave(2) if past else rate.repeat(2)
    angle = place[..., None] * rates  # (N, 3, 2 * pairs)
    angle = F.pad(angle.flatten(1), (0, head_dim - 6 * pairs))
    return torch.cat([angle.sin(), angle.cos()], 1)


# ViT, table 1 (2010.11929), with tubelets.


@register
def vit(**kwargs: Any) -> ViT:
    """A vision transformer of any size; the arguments are those of ``ffn.backbones.ViT``."""
    return ViT(**kwargs)


@register
def vit_s(**kwargs: Any) -> ViT:
    """ViT-S: 22 M parameters, 57 GMACs for 16 frames at 224 px."""
    return ViT(dim=384, heads=6, **kwargs)


@register
def vit_b(**kwargs: Any) -> ViT:
    """ViT-B: 87 M parameters, 180 GMACs for 16 frames at 224 px."""
    return ViT(**kwargs)


@register
def vit_l(**kwargs: Any) -> ViT:
    """ViT-L: 304 M parameters, 597 GMACs for 16 frames at 224 px."""
    return ViT(dim=1024, depth=24, heads=16, **kwargs)


@register
def vjepa2_l(**kwargs: Any) -> ViT:
    """V-JEPA 2's ViT-L: rotary positions, attentive pooling after three blocks."""
    form = {"positions": "rotary", "pool": "attention", "pool_depth": 3}
    return vit_l(**form, **kwargs)


@register
def vit_tiny(*, width: int = 128, **kwargs: Any) -> ViT:
    """A ViT for CPUs and frames of 24 to 40 px: patches of 8, 1 M parameters."""
    heads = max(1, width // 32)
    return ViT(dim=width, depth=5, heads=heads, patch=8, grid=(8, 4, 4), **kwargs)
