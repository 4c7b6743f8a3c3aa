"""UniFormer: attention written out, accepted sizes, and initialization."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ffn.backbones.uniformer import Attention, UniFormer


def attention(layer: Attention, tokens: Tensor) -> Tensor:
    """Self-attention of one sequence (N, C), head by head."""
    size = tokens.shape[1] // layer.heads
    q, k, v = layer.qkv(tokens).split(tokens.shape[1], dim=1)
    heads = []
    for head in range(layer.heads):
        part = slice(head * size, (head + 1) * size)
        weights = (q[:, part] @ k[:, part].T / size**0.5).softmax(1)
        heads.append(weights @ v[:, part])
    return layer.proj(torch.cat(heads, 1))


@torch.no_grad()
def test_attention_head_by_head() -> None:
    torch.manual_seed(0)
    layer, tokens = Attention(12, 3), torch.randn(2, 5, 12)
    expected = torch.stack([attention(layer, one) for one in tokens])
    torch.testing.assert_close(layer(tokens), expected)


@torch.no_grad()
def test_sizes_that_do_not_fit_say_which_do() -> None:
    for patch, sides, fitting in ((4, (224, 100), "224 x 96"), (2, (8, 8), "16 x 16")):
        model = UniFormer(3, (1, 1, 1, 1), dims=(8, 8, 8, 8), head_dim=8, patch=patch)
        with pytest.raises(ValueError, match=rf"is {sides[0]} x {sides[1]} px; .* {fitting}"):
            model(torch.zeros(1, 3, 2, *sides))
    for sides in ((16, 16), (24, 40)):
        assert model(torch.zeros(1, 3, 3, *sides)).shape == (1, 3)
    with pytest.raises(ValueError, match="head_dim is 48; it must divide 320 and 512"):
        UniFormer(3, head_dim=48)


def test_drop_path_rises_over_the_blocks() -> None:
    model = UniFormer(3, (1, 1, 2, 1), dims=(8, 8, 16, 16), head_dim=8, drop_path=0.4)
    rates = [block.drop_path.drop_prob for stage in model.blocks for block in stage]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
