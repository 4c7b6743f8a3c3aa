"""The shift against a loop that moves one frame at a time, and the convolution that carries it."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ffn.layers import ClipLength, ShiftConv2d, temporal_shift


def shift_by_hand(x: Tensor, clips: int, frames: int, fold: int) -> Tensor:
    out = torch.zeros_like(x)
    for clip in range(clips):
        for t in range(frames):
            for channel in range(x.shape[1]):
                source = t + 1 if channel < fold else t - 1 if channel < 2 * fold else t
                if 0 <= source < frames:
                    out[clip * frames + t, channel] = x[clip * frames + source, channel]
    return out


def test_equals_the_loop() -> None:
    layouts, shapes = (torch.contiguous_format, torch.channels_last), ((16, 8), (19, 8), (1, 8))
    for frames, layout, (channels, divisor), size in itertools.product(
        (1, 2, 5), layouts, shapes, ((3, 2), (1, 1))
    ):
        x = torch.randn(2 * frames, channels, *size).to(memory_format=layout)
        expected, before = shift_by_hand(x, 2, frames, channels // divisor), x.clone()

        with_gradient = temporal_shift(x.clone().requires_grad_(), frames, divisor)
        for shifted in (temporal_shift(x, frames, divisor), with_gradient):
            assert torch.equal(shifted, expected)
            assert shifted.is_contiguous(memory_format=layout)
        assert torch.equal(x, before)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_causal(layout: torch.memory_format) -> None:
    x = torch.randn(6, 16, 3, 2).to(memory_format=layout)
    expected = x.unflatten(0, (2, 3)).clone()
    expected[:, 1:, :2] = expected[:, :-1, :2].clone()
    expected[:, 0, :2] = 0

    class Shift(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return temporal_shift(x, 3, causal=True)

    for shift in (Shift(), torch.export.export(Shift(), (x,)).module()):
        assert torch.equal(shift(x), expected.flatten(0, 1))
    x = x.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: temporal_shift(x, 3, causal=True), x)


def test_the_exported_form_takes_any_batch() -> None:
    class Shift(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return temporal_shift(x.flatten(0, 1), x.shape[1])

    for frames in (1, 2, 5):
        dynamic = ({0: torch.export.Dim("B")},)
        example = torch.randn(2, frames, 16, 3, 2)
        exported = torch.export.export(Shift(), (example,), dynamic_shapes=dynamic).module()
        for clips in (1, 3):
            x = torch.randn(clips, frames, 16, 3, 2)
            x[1:2] = float("inf")  # one clip does not change another
            expected = shift_by_hand(x.flatten(0, 1), clips, frames, 2)
            assert torch.equal(exported(x), expected)


def test_slices_of_features() -> None:
    whole = torch.randn(6, 20, 3, 4).to(memory_format=torch.channels_last)
    for x in (whole[:, 2:18], whole[:, :, :, 1:], whole[::2]):
        assert torch.equal(temporal_shift(x, 3), shift_by_hand(x, len(x) // 3, 3, x.shape[1] // 8))


def test_gradient_is_the_transposed_shift() -> None:
    for size in ((1, 1), (2, 3)):
        x = torch.randn(6, 8, *size, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x: temporal_shift(x, 3), x)
        x = x.detach().to(memory_format=torch.channels_last).requires_grad_()
        assert torch.autograd.gradcheck(lambda x: temporal_shift(x, 3), x)


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2, "padding": 1, "bias": False},
        {"groups": 16},
        {"padding": 2, "dilation": 2},
        {"padding": 1, "padding_mode": "reflect"},
        {"padding": "same"},
    ],
    ids=str,
)
def test_shift_conv_is_shift_then_conv(options: dict[str, Any]) -> None:
    conv, length = nn.Conv2d(16, 16, 3, **options), ClipLength()
    length.frames = 3
    x = torch.randn(6, 16, 7, 7)

    shifted = ShiftConv2d(conv, length)

    assert torch.equal(shifted(x), conv(shift_by_hand(x, 2, 3, 2)))
    assert list(shifted.state_dict()) == list(conv.state_dict())
    assert shifted.weight is conv.weight


def test_copied_layer_follows_the_length_of_the_original_model() -> None:
    length = ClipLength()
    layer = copy.deepcopy(ShiftConv2d(nn.Conv2d(8, 4, 1), length))
    x = torch.randn(4, 8, 1, 1)

    length.frames = 2
    before = layer(x)
    length.frames = 4
    assert not torch.equal(layer(x), before)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_flop_counter_of_torch(mode: type) -> None:
    conv = ShiftConv2d(nn.Conv2d(8, 4, 1), ClipLength())
    conv.site = nn.Identity()
    conv.length.frames = 2
    with mode(), FlopCounterMode(display=False) as counter:
        conv(torch.randn(4, 8, 3, 3))
    assert counter.get_total_flops() == 2 * 4 * 9 * 8 * 4


def test_gradients_of_torch_func_and_of_gradients() -> None:
    x = torch.randn(8, 8, 2, 2, dtype=torch.float64, requires_grad=True)
    factor = torch.randn_like(x)

    def loss(x: Tensor) -> Tensor:
        return (temporal_shift(x, 4) ** 2 * factor).sum()

    (expected,) = torch.autograd.grad(loss(x), x)
    assert torch.equal(torch.func.grad(loss)(x.detach()), expected)
    assert torch.autograd.gradgradcheck(loss, (x,))
