"""Vision transformers: a copy written out clip by clip, positions, cost, and accepted arguments."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ffn import backbones
from ffn.backbones.vit import ViT, rotary_positions, sine_positions
from ffn.evaluation import count_macs

SMALL = {"num_classes": 5, "dim": 24, "depth": 2, "heads": 2, "patch": 4, "grid": (4, 3, 3)}
CPU = torch.device("cpu")


def table(dim: int, index: float) -> Tensor:
    """VideoMAE's vector of a position, channel by channel."""
    angles = [index / 10000 ** (2 * (c // 2) / dim) for c in range(dim)]
    values = [math.cos(a) if c % 2 else math.sin(a) for c, a in enumerate(angles)]
    return torch.tensor(values, dtype=torch.float64)


def rotated(x: Tensor, place: tuple[int, int, int]) -> Tensor:
    """A query or key (C,) of a head, rotated as in V-JEPA 2, pair by pair."""
    out, part = x.clone(), len(x) // 3 // 2 * 2
    for axis, position in enumerate(place):
        for c in range(part):
            frequency = 10000 ** -(c % (part // 2) / (part // 2))
            angle = torch.tensor(position * frequency)
            here = axis * part + c
            other = -x[here + 1] if c % 2 == 0 else x[here - 1]
            out[here] = x[here] * angle.cos() + other * angle.sin()
    return out


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.T / q.shape[1] ** 0.5).softmax(1) @ v


def written_out(model: ViT, clip: Tensor) -> Tensor:
    """The tokens (N, C) of one clip (C, T, H, W) after the last block, token by token."""
    _, frames, height, width = clip.shape
    p, heads = model.patch, model.blocks[0].attn.num_heads
    tokens, places = [], []
    for t in range(0, frames, 2):
        pair = clip[:, [t, min(t + 1, frames - 1)]]
        for row in range(height // p):
            for column in range(width // p):
                cut = pair[:, :, row * p : row * p + p, column * p : column * p + p]
                weight = model.patch_embed.weight
                tokens.append((weight * cut).sum((1, 2, 3, 4)) + model.patch_embed.bias)
                places.append((t // 2, row, column))
    x = torch.stack(tokens)
    if model.positions == "sine":
        _, rows, columns = model.grid
        for n, (t, row, column) in enumerate(places):
            middle = (2 * t + min(2 * t + 2, frames)) / 2
            moment = middle / frames * model.grid[0] - 0.5
            share = moment - math.floor(moment)
            for step, part in ((math.floor(moment), 1 - share), (math.floor(moment) + 1, share)):
                x[n] += part * table(x.shape[1], (step * rows + row) * columns + column)
    for block in model.blocks:
        q, k, v = block.attn.qkv(block.norm1(x)).unflatten(1, (3, heads, -1)).permute(1, 2, 0, 3)
        if model.positions == "rotary":
            q, k = (
                torch.stack(
                    [torch.stack([rotated(*z) for z in zip(y, places, strict=True)]) for y in each]
                )
                for each in (q, k)
            )
        mixed = torch.cat([attend(q[h], k[h], v[h]) for h in range(heads)], 1)
        x = x + block.attn.proj(mixed)
        x = x + block.mlp.fc2(F.gelu(block.mlp.fc1(block.norm2(x))))
    return x


@pytest.mark.parametrize("positions", ["sine", "rotary"])
@torch.no_grad()
def test_the_network_token_by_token(positions: str) -> None:
    torch.manual_seed(0)
    model = ViT(**SMALL, positions=positions).double().eval()
    for parameter in model.parameters():  # no bias is zero, no norm is plain
        parameter.add_(0.1 * torch.randn_like(parameter))
    for frames in (1, 3, 8):
        clips = torch.randn(2, 3, frames, 12, 12).double()
        tokens = torch.stack([written_out(model, clip) for clip in clips])
        found = model.forward_features(clips)
        assert found.shape == (2, 24, (frames + 1) // 2, 3, 3)
        torch.testing.assert_close(found.flatten(2).transpose(1, 2), tokens)
        expected = model.head(model.fc_norm(tokens.mean(1)))
        torch.testing.assert_close(model(clips), expected)


def test_sines_at_other_sizes() -> None:
    grid, dim = (8, 14, 14), 48
    stored = torch.stack([table(dim, n) for n in range(8 * 14 * 14)])
    found = sine_positions(16, grid, grid, dim, CPU)
    torch.testing.assert_close(found, stored, rtol=0, atol=1e-12)
    maps = stored.view(8, 14, 14, dim).permute(0, 3, 1, 2)
    wide = F.interpolate(maps, (7, 20), mode="bilinear").permute(0, 2, 3, 1).reshape(-1, dim)
    torch.testing.assert_close(sine_positions(16, (8, 7, 20), grid, dim, CPU), wide)
    for frames in range(1, 65):  # no two tokens have the same position
        tokens = sine_positions(frames, ((frames + 1) // 2, 14, 14), grid, 16, CPU)
        assert len(tokens[::14].round(decimals=9).unique(dim=0)) == len(tokens[::14])


def test_a_rotation_depends_on_differences() -> None:
    """Of the positions, where a pair has one angle; the first pair of a part of 4 channels."""
    emb = rotary_positions((9, 2, 2), 6, CPU)
    assert emb.shape == (36, 12)
    sin, cos = emb.view(9, 2, 2, 2, 6)[:, 0, 0, :, :2].unbind(1)
    torch.testing.assert_close(torch.atan2(sin, cos)[:4], torch.arange(4.0)[:, None].repeat(1, 2))


@pytest.mark.parametrize("pool", ["mean", "first", "attention"])
def test_poolings(pool: str) -> None:
    torch.manual_seed(0)
    model = ViT(**SMALL, pool=pool, pool_depth=1, drop_path=0.2).double().eval()
    clip = torch.randn(2, 3, 5, 12, 12).double()
    features = model.forward_features(clip)
    tokens = features.flatten(2).transpose(1, 2)
    if pool == "mean":
        expected = F.layer_norm(tokens.mean(1), (24,), eps=1e-6)
    elif pool == "first":
        expected = tokens[:, 0]
    else:
        pooler, heads = model.pooler, []
        x = pooler.norm(pooler.blocks(tokens))
        q = pooler.attn.q(pooler.attn.latent[0])  # (1, C)
        for one in x:
            k, v = pooler.attn.kv(one).chunk(2, 1)
            parts = [attend(q[:, s], k[:, s], v[:, s]) for s in (slice(0, 12), slice(12, 24))]
            heads.append(torch.cat(parts, 1)[0])
        y = pooler.attn.proj(torch.stack(heads))
        expected = y + pooler.attn.mlp(pooler.attn.norm(y))
    torch.testing.assert_close(model.forward_head(features, pre_logits=True), expected)

    model.train()(clip).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert model.blocks[1].drop_path1.drop_prob == 0.2


def test_cost_by_hand() -> None:
    with torch.device("meta"):
        model = backbones.build("vit_b", num_classes=174)
    assert sum(p.numel() for p in model.parameters()) == 86_370_222
    for frames in (7, 16):
        tokens, dim = (frames + 1) // 2 * 14 * 14, 768
        block = 12 * tokens * dim**2 + 2 * tokens**2 * dim
        expected = tokens * 2 * 16 * 16 * 3 * dim + 12 * block + dim * 174
        clip = torch.empty(1, 3, frames, 224, 224, device="meta")
        assert count_macs(model, clip) == expected


@torch.no_grad()
def test_what_is_refused() -> None:
    model = ViT(**SMALL)
    for sides, fitting in (((12, 10), "12 x 8"), ((3, 12), "4 x 12"), ((0, 4), "4 x 4")):
        with pytest.raises(ValueError, match=rf"is {sides[0]} x {sides[1]} px; .* {fitting}"):
            model(torch.zeros(1, 3, 2, *sides))
    for wrong in ({"heads": 5}, {"positions": "learned"}, {"pool": "max"}):
        with pytest.raises(
            ValueError, match=f"{next(iter(wrong))} is .*{next(iter(wrong.values()))}"
        ):
            ViT(**SMALL | wrong)
