"""Multiply-accumulates and parameters of the published networks against those of another tool.

Plain networks of FFN-pytorch, 174 classes, one clip, counted by fvcore (convolutions, linear and
matrix products): at 224 px, SlowFast at 256.
"""

from __future__ import annotations

import pytest
import torch

from ffn import backbones
from ffn.core import convert
from ffn.evaluation import count_macs, count_parameters

# model: (side in px, parameters, {frames: multiply-accumulates})
COUNTED = {
    "tsm_r50": (224, 23_864_558, {4: 16349970432, 8: 32699940864, 16: 65399881728}),
    "tea_r50": (224, 24_456_280, {4: 17268747904, 8: 34537495808, 16: 69074991616}),
    "slowfast_r50": (256, 34_045_558, {16: 32854384128, 32: 65708367360, 64: 131416333824}),
    "uniformer_s": (224, 21_284_462, {4: 7966883840, 8: 17566204928, 16: 41662426112}),
}
FLEXIBLE = {
    "tsm_r50": 24_010_158,
    "tea_r50": 24_601_336,
    "slowfast_r50": 34_212_606,
    "uniformer_s": 21_343_406,
}
PAPER = {4: 16.4, 8: 32.8, 16: 65.5}  # FFN, table 1: GMACs of TSM-R50


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
        assert sum(count_macs(model, clip).values()) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("name", FLEXIBLE)
def test_frame_flexible_networks_add_less_than_one_percent(name: str) -> None:
    plain = on_meta(name)
    flexible = convert(plain, (4, 8, 16))
    assert count_parameters(flexible) == FLEXIBLE[name]
    per_count = count_parameters(flexible, 16) / count_parameters(plain) - 1
    assert per_count < 0.002  # the network that runs
    assert count_parameters(flexible) / count_parameters(plain) - 1 < 0.01  # the file


def test_cost_of_tsm_is_that_of_the_paper() -> None:
    flexible = convert(on_meta("tsm_r50"), (4, 8, 16))
    for frames, gmacs in PAPER.items():
        clip = torch.empty(1, 3, frames, 224, 224, device="meta")
        assert sum(count_macs(flexible, clip).values()) / 1e9 == pytest.approx(gmacs, rel=0.01)
