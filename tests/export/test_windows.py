"""Convolutions over windows of frames, and kernels without positions that only meet padding."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ffn
from ffn.backbones.slowfast import SlowFast
from ffn.conv3d import Conv3d
from ffn.export import can_pack, pack
from ffn.export.kernels import OverFrames
from ffn.export.packed_layers import PackedWeight, convolve
from ffn.export.windows import ConvOverWindows, WindowWeights, fits_windows

pytestmark = pytest.mark.skipif(
    not can_pack(torch.float32), reason="this torch or processor has none of oneDNN's operators"
)
needs_bf16 = pytest.mark.skipif(not can_pack(), reason="convolutions in fp32 stay 3-D")


def small_slowfast() -> nn.Module:
    """Fused, in bf16; its stems pool."""
    torch.manual_seed(0)
    return ffn.fuse(SlowFast(5, (1, 1, 1, 1), width=32).eval()).bfloat16()


# span, stride, padding and dilation over time, channels of the output
SPANS = [(5, 1, 2, 1, 8), (3, 2, 1, 1, 16), (4, 2, 2, 1, 5), (3, 1, 2, 2, 8), (5, 3, 2, 1, 8)]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("span", "stride", "padding", "dilation", "channels"), SPANS)
def test_outputs_are_those_of_the_3d_convolution(
    span: int, stride: int, padding: int, dilation: int, channels: int, batch: int
) -> None:
    torch.manual_seed(0)
    strides, paddings, dilations = (stride, 2, 2), (padding, 1, 1), (dilation, 1, 1)
    conv = nn.Conv3d(3, channels, (span, 3, 3), strides, paddings, dilations)
    assert fits_windows(conv)
    weights = WindowWeights(conv)
    pooled = ConvOverWindows(weights, "relu", nn.MaxPool2d(3, 2, 1))
    for frames in (1, 2, 4, 7, 8, 9, 16, 17, 31):
        x = torch.randn(batch, 3, frames, 10, 14)
        with torch.inference_mode():
            expected = conv(x)
            found = ConvOverWindows(weights)(x)
            both = pooled(x.contiguous(memory_format=torch.channels_last_3d))
        assert (found - expected).abs().max() <= 1e-5
        maxima = F.max_pool3d(expected.relu(), (1, 3, 3), (1, 2, 2), (0, 1, 1))
        assert (both - maxima).abs().max() <= 1e-5
        assert found.permute(0, 2, 3, 4, 1).is_contiguous()


def test_convolutions_that_stay() -> None:
    """Those of one frame, of many channels, in groups, or without output for short clips."""
    assert fits_windows(nn.Conv3d(3, 8, 3, padding=1))
    assert fits_windows(Conv3d(1, 16, 3, padding=1))
    for other in (
        nn.Conv3d(3, 8, (1, 3, 3)),
        nn.Conv3d(3, 17, 3, padding=1),
        nn.Conv3d(5, 8, 3, padding=1),
        nn.Conv3d(4, 8, 3, padding=1, groups=2),
        nn.Conv3d(3, 8, 3, padding=(0, 1, 1)),
        nn.Conv3d(3, 8, 3, padding="same"),
        nn.Conv3d(3, 8, 3, padding=1, padding_mode="replicate"),
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ConvTranspose3d(3, 8, 3, padding=1),
    ):
        assert not fits_windows(other)


@needs_bf16
def test_the_stem_of_slowfast_runs_over_windows_and_pools_there() -> None:
    half = small_slowfast()
    stem = half.fast.stem
    assert type(stem.conv1) is Conv3d
    assert isinstance(stem.maxpool, OverFrames)
    packed = pack(copy.deepcopy(half))
    windows = [one for one in packed.modules() if isinstance(one, ConvOverWindows)]
    assert {(one.activation, type(one.pool)) for one in windows} == {
        ("relu", nn.MaxPool2d),  # in the forward of the stem
        ("none", nn.Identity),  # for its other methods
    }
    for frames in (1, 4, 19):
        clip = torch.randn(2, 3, frames, 64, 64).bfloat16()
        with torch.inference_mode():
            expected, found = stem(clip).float(), packed.fast.stem(clip).float()
        assert (found - expected).abs().max() <= 0.02 * expected.abs().max()


@needs_bf16
def test_a_pooling_with_a_hook_is_called() -> None:
    half = small_slowfast()
    calls = []
    half.fast.stem.maxpool.register_forward_hook(lambda *_: calls.append(1))
    packed = pack(half)
    with torch.inference_mode():
        packed(torch.randn(1, 3, 4, 64, 64).bfloat16())
    assert calls == [1]


class ChangesItsInput(nn.Module):
    """Between the convolution and the pooling, another layer writes over their input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = Conv3d(3, 8, 3, padding=1)
        self.relu, self.over = nn.ReLU(), nn.ReLU(inplace=True)
        self.pool = OverFrames(nn.MaxPool2d(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.conv(x))
        x = self.over(x)
        return self.pool(y) + x.mean()


@needs_bf16
def test_an_input_that_is_changed_before_the_pooling() -> None:
    torch.manual_seed(0)
    half = ChangesItsInput().eval().requires_grad_(False).bfloat16()
    packed, clip = pack(copy.deepcopy(half)), torch.randn(1, 3, 4, 8, 8).bfloat16()
    with torch.inference_mode():
        expected, found = half(clip.clone()).float(), packed(clip.clone()).float()
    assert (found - expected).abs().max() <= 0.02 * expected.abs().max()


def test_convolutions_in_fp32_stay() -> None:
    packed = pack(small_slowfast().float())
    assert not any(isinstance(one, ConvOverWindows) for one in packed.modules())


# height of the input, height of the kernel, padding, stride, dilation, taps that meet the input
HEIGHTS = [
    (1, 3, 1, 1, 1, (1, 2)),
    (2, 3, 1, 1, 1, (0, 3)),
    (2, 5, 2, 1, 1, (1, 4)),
    (4, 7, 3, 4, 1, (3, 7)),
    (3, 3, 4, 1, 4, (1, 2)),
    (1, 3, 2, 1, 1, (0, 3)),  # all: each of the three rows of the output reads the row by another
    (1, 4, 2, 1, 1, (1, 3)),
    (3, 3, 2, 1, 3, (0, 3)),  # all: tap 1 alone would need a padding of -1
    (9, 3, 1, 1, 1, (0, 3)),
]


@pytest.mark.parametrize(("size", "kernel", "padding", "stride", "dilation", "taps"), HEIGHTS)
def test_taps_that_only_meet_padding_are_left_out(
    size: int, kernel: int, padding: int, stride: int, dilation: int, taps: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(6, 4, kernel, 1), torch.randn(6)
    options = [padding, 0], [stride, 1], [dilation, 1], 1
    packed = PackedWeight(weight, options)
    for height in (size, 12, size):
        x = torch.randn(2, 4, height, 5).to(memory_format=torch.channels_last)
        with torch.inference_mode():
            found = convolve(x, (packed, bias), "none")
        expected = F.conv2d(x, weight, bias, options[1], options[0], options[2])
        assert found.shape == expected.shape
        assert (found - expected).abs().max() <= 1e-5
    used = packed.for_input(torch.Size((2, 4, size, 5)))
    assert used.taps[0] == slice(*taps)
    assert used.weight.shape[2] == taps[1] - taps[0]
    assert torch.equal(packed.dense(), weight)


def test_the_whole_weight_is_kept_for_other_shapes() -> None:
    """Also if the first inputs need one tap only, and if many shapes were seen."""
    weight = torch.randn(6, 4, 3, 1)
    packed = PackedWeight(weight, ([1, 0], [1, 1], [1, 1], 1))
    for width in range(1, 40):
        packed.for_input(torch.Size((1, 4, 1, width)))
        assert torch.equal(packed.dense(), weight)
    assert packed.for_input(torch.Size((1, 4, 2, 5))).weight.shape == weight.shape
