"""Multiply-accumulates, parameters and latency, against another tool and by hand.

The published networks: plain networks of FFN-pytorch, 174 classes, one clip, counted by fvcore
(convolutions, linear and matrix products): at 224 px, SlowFast at 256.
"""

from __future__ import annotations

import pytest
import torch
from evaluation_toys import flexible, plain
from torch import nn

from ffn import backbones
from ffn.core import extract
from ffn.evaluation import count_macs, count_parameters

# model: (side in px, parameters, {frames: multiply-accumulates})
COUNTED = {
    "tsm_r50": (224, 23_864_558, {4: 16349970432, 8: 32699940864, 16: 65399881728}),
    "tea_r50": (224, 24_456_280, {4: 17268747904, 8: 34537495808, 16: 69074991616}),
    "slowfast_r50": (256, 34_045_558, {16: 32854384128, 32: 65708367360, 64: 131416333824}),
    "uniformer_s": (224, 21_284_462, {4: 7966883840, 8: 17566204928, 16: 41662426112}),
}


def on_meta(name: str) -> torch.nn.Module:
    with torch.device("meta"):
        return backbones.build(name, num_classes=174)


@pytest.mark.parametrize("name", COUNTED)
def test_cost_equals_the_count_of_another_tool(name: str) -> None:
    side, parameters, macs = COUNTED[name]
    model = on_meta(name)
    assert count_parameters(model) == parameters

    for frames, expected in macs.items():
        clip = torch.empty(1, 3, frames, side, side, device="meta")
        assert count_macs(model, clip) == pytest.approx(expected, rel=1e-3)


class Attention(nn.Module):
    """Two kinds of attention over the frames; one of them runs fused in eval."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.attention = nn.MultiheadAttention(64, 2, batch_first=True)

    def forward(self, clip: torch.Tensor) -> torch.Tensor:
        x = clip.flatten(3).mean(1)  # (B, T, 64)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 32)).permute(2, 0, 3, 1, 4)
        x = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.attention(x, x, x)[0].mean(1)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_fused_attention_is_counted(device: str) -> None:
    frames, width = 10, 64
    linear = frames * width * 3 * width
    product = frames * frames * width  # summed over heads
    expected = linear + 2 * product  # own
    expected += linear + 2 * product + frames * width * width  # nn.MultiheadAttention

    clip = torch.zeros(1, 3, frames, 8, 8, device=device)

    assert count_macs(Attention().to(device), clip) == expected
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_sub_network_has_the_parameters_of_its_extract() -> None:
    model = flexible()
    for count in (2, 6):
        extracted = sum(p.numel() for p in extract(model, count).parameters())
        assert count_parameters(model, count) == extracted

    private = 2 * 6 + 3  # a norm's weight and bias, an alteration
    assert count_parameters(model) == count_parameters(plain()) + 3 + private

    linear = nn.Linear(3, 3)
    assert count_parameters(nn.Sequential(linear, linear)) == 12  # shared ones count once
