from __future__ import annotations

import time

import pytest
import timm
import torch
from evaluation_toys import flexible, plain
from torch import nn

from ffn.core import extract
from ffn.evaluation import count_macs, count_parameters, measure_latency
from ffn.layers import PerFrame

# TSM-R50 (a ResNet-50 per frame; the shift is free), 174 classes, one clip at 224: fvcore count
FVCORE_CONVOLUTION = {4: 16348545024, 8: 32697090048, 16: 65394180096}
FVCORE_LINEAR = {4: 1425408, 8: 2850816, 16: 5701632}


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    with torch.device("meta"):
        return PerFrame(timm.create_model("resnet50", num_classes=174))


@pytest.mark.parametrize("frames", [4, 8, 16])
def test_cost_of_resnet50_is_that_of_fvcore(resnet: nn.Module, frames: int) -> None:
    clip = torch.zeros(1, 3, frames, 224, 224, device="meta")

    assert count_macs(resnet, clip) == {
        "convolution": FVCORE_CONVOLUTION[frames],
        "addmm": FVCORE_LINEAR[frames],
    }


def test_parameters_of_resnet50_are_those_of_the_published_tsm(resnet: nn.Module) -> None:
    assert count_parameters(resnet) == 23864558


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

    assert sum(count_macs(Attention().to(device), clip).values()) == expected
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_convolution_by_hand() -> None:
    clip = torch.zeros(2, 3, 5, 8, 8)  # a 3x3 convolution with stride 2 makes it 3x3

    assert count_macs(plain(), clip) == {
        "convolution": 2 * 5 * 3 * 3 * 6 * (3 * 3 * 3),
        "addmm": 2 * 5 * 54 * 7,
    }


def test_a_sub_network_has_the_parameters_of_its_extract() -> None:
    model = flexible()
    for count in (2, 6):
        extracted = sum(p.numel() for p in extract(model, count).parameters())
        assert count_parameters(model, count) == extracted

    private = 2 * 6 + 3  # a norm's weight and bias, an alteration
    assert count_parameters(model) == count_parameters(plain()) + 3 + private


def test_a_shared_parameter_counts_once() -> None:
    linear = nn.Linear(3, 3)

    assert count_parameters(nn.Sequential(linear, linear)) == 12


class Sleeper(nn.Module):
    """The first three calls and the seventh take 100 ms, the others 10 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, clip: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        time.sleep(0.1 if self.calls in (1, 2, 3, 7) else 0.01)
        return clip


def test_latency_is_the_median_after_warmup() -> None:
    model = Sleeper()

    latency = measure_latency(model, torch.zeros(1), repeats=5, warmup=2)

    assert model.calls == 7
    assert 10 <= latency < 50


def test_measuring_restores_the_model() -> None:
    model = flexible().train()
    model.model.net[2].eval()
    model.activate(2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    clip = torch.zeros(1, 3, 6, 8, 8)

    count_macs(model, clip)
    measure_latency(model, clip, repeats=1, warmup=1)

    assert model.active == 2
    assert [module.training for module in model.modules()] == modes
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
