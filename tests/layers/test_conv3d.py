"""3-D convolutions of ffn against torch's in fp32, and a shortcut by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ffn.core import convert
from ffn.layers import Conv3d, ShortcutConv3d


def weight_gradient(conv: nn.Conv3d, frames: int, *, autocast: bool) -> torch.Tensor:
    torch.manual_seed(1)
    clip = torch.randn(2, conv.in_channels, frames, 16, 16)
    conv.zero_grad()
    stale = [torch.full((size,), 1e30) for size in (100, 1000, 10_000, 100_000)]
    del stale  # memory that a kernel may get and read
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = conv(clip)
    assert out.dtype is (torch.bfloat16 if autocast else torch.float32)
    out.float().sum().backward()
    return conv.weight.grad.clone()


@pytest.mark.parametrize("frames", [1, 2, 4])
@pytest.mark.parametrize("span", [3, 5])
def test_gradients_under_bf16_autocast_are_those_of_fp32(span: int, frames: int) -> None:
    torch.manual_seed(0)
    conv = Conv3d(8, 16, (span, 1, 1), padding=(span // 2, 0, 0), bias=False)
    expected = weight_gradient(conv, frames, autocast=False)
    found = weight_gradient(conv, frames, autocast=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02 * expected.abs().max().item())


def test_gradients_of_a_bf16_layer() -> None:
    torch.manual_seed(0)
    conv = Conv3d(8, 16, (5, 1, 1), padding=(2, 0, 0)).bfloat16()
    clip = torch.randn(2, 8, 2, 16, 16)
    conv(clip.bfloat16()).float().sum().backward()
    reference = nn.Conv3d(8, 16, (5, 1, 1), padding=(2, 0, 0))
    reference.load_state_dict(conv.state_dict())
    reference(clip.bfloat16().float()).sum().backward()
    expected = reference.weight.grad
    found = conv.weight.grad.float()
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02 * expected.abs().max().item())


@pytest.mark.parametrize("frames", [1, 2])
def test_gradients_of_a_converted_network_are_those_of_fp32(frames: int) -> None:
    """Of a network without layers of ffn, in a training loop of one's own."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv3d(3, 8, 5, padding=2, bias=False), nn.BatchNorm3d(8))
    model = convert(plain, (1, 2), alter="none").train()
    assert type(plain[0]) is nn.Conv3d
    clip = torch.randn(2, 3, frames, 16, 16)
    gradients = {}
    for half in (False, True):
        model.zero_grad()
        stale = [torch.full((size,), 1e30) for size in (100, 1000, 10_000, 100_000)]
        del stale
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            outputs = model(clip)
        outputs.float().pow(3).sum().backward()
        gradients[half] = model.model[0].weight.grad.clone()
    scale = gradients[False].abs().max().item()
    torch.testing.assert_close(gradients[True], gradients[False], rtol=0, atol=0.05 * scale)


@pytest.mark.parametrize("frames", [1, 2, 5])
@pytest.mark.parametrize("span", [1, 3, 5])
@torch.no_grad()
def test_outputs_in_bf16_are_those_of_fp32(span: int, frames: int) -> None:
    """On CPUs with AMX, torch's own layer gives NaN for 1 frame and a span of 3 or 5."""
    torch.manual_seed(0)
    conv = Conv3d(8, 16, (span, 5, 5), padding=(span // 2, 2, 2), bias=False)
    clip = torch.randn(2, 8, frames, 16, 16)
    expected = conv(clip)
    stale = [torch.full((size,), 1e30) for size in (100, 1000, 10_000, 100_000)]
    del stale
    found = conv.bfloat16()(clip.bfloat16()).float()
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02 * expected.abs().max().item())


def test_inference_in_bf16_runs_the_bf16_kernel() -> None:
    conv = Conv3d(2, 2, 1).bfloat16()
    calls = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if getattr(function, "__name__", "") == "conv3d":
                calls.append(args[0].dtype)
            return function(*args, **(kwargs or {}))

    with torch.no_grad(), Mode():
        conv(torch.randn(1, 2, 2, 4, 4).bfloat16())
    assert calls == [torch.bfloat16]


@torch.no_grad()
def test_a_merged_shortcut() -> None:
    torch.manual_seed(0)
    conv = ShortcutConv3d(3, 3, 3, padding=1, groups=3)
    clip = torch.randn(2, 3, 5, 6, 7)
    by_hand = clip + nn.functional.conv3d(clip, conv.weight, conv.bias, padding=1, groups=3)
    torch.testing.assert_close(conv(clip), by_hand)
    merged = conv.for_inference()
    assert type(merged) is nn.Conv3d
    assert not merged.weight.requires_grad
    torch.testing.assert_close(merged(clip), by_hand)
    difference = merged.weight - conv.weight
    assert difference[:, 0, 1, 1, 1].tolist() == pytest.approx([1, 1, 1])
    assert difference.abs().sum().item() == pytest.approx(3)


@torch.no_grad()
def test_for_inference() -> None:
    conv = Conv3d(4, 6, (3, 1, 2), (2, 1, 1), (1, 0, 1), bias=False)
    clip = torch.randn(2, 4, 5, 6, 7)
    found = conv.for_inference()
    assert type(found) is nn.Conv3d
    torch.testing.assert_close(found(clip), conv(clip))
