"""TEA: its two modules frame by frame, and their initialization."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import Tensor
from torch.nn import functional as F

from ffn import backbones
from ffn.backbones.tea import MotionExcitation, TemporalConv
from ffn.layers import ClipLength, temporal_shift


def length_of(frames: int) -> ClipLength:
    length = ClipLength()
    length.frames = frames
    return length


@pytest.mark.parametrize("frames", [1, 2, 5])
@torch.no_grad()
def test_motion_excitation_frame_by_frame(frames: int) -> None:
    torch.manual_seed(0)
    module = MotionExcitation(32, length_of(frames)).eval()
    torch.nn.init.uniform_(module.bn3.bias, -1, 1)
    clips = torch.rand(2, frames, 32, 3, 3)

    expected = torch.empty_like(clips)
    for b in range(2):
        squeezed = module.bn1(module.conv1(clips[b]))
        for t in range(frames):
            motion = torch.zeros(1, 2, 1, 1)  # the last frame has none
            if t + 1 < frames:
                following = module.conv2(squeezed[t + 1 : t + 2])
                motion = (following - squeezed[t]).mean((2, 3), keepdim=True)
            gate = torch.sigmoid(module.bn3(module.conv3(motion))) - 0.5
            expected[b, t] = (clips[b, t] + clips[b, t] * gate)[0]

    torch.testing.assert_close(module(clips.flatten(0, 1)), expected.flatten(0, 1))


@torch.no_grad()
def test_temporal_convolution_starts_as_identity_or_as_a_shift() -> None:
    for frames in (1, 2, 5):
        x = torch.randn(2 * frames, 8, 3, 3)
        assert torch.equal(TemporalConv(8, length_of(frames), shifted=False)(x), x)
        shifted = TemporalConv(8, length_of(frames), shifted=True)(x)
        assert torch.equal(shifted, temporal_shift(x, frames, divisor=2))


@torch.no_grad()
def test_without_excitation_and_shift_it_is_timms_network() -> None:
    torch.manual_seed(0)
    name = "res2net50_26w_4s"
    model = backbones.build(f"tea.{name}", num_classes=3).eval()
    plain = timm.create_model(name, num_classes=3).eval()
    own = {k: v for k, v in model.net.state_dict().items() if ".me." not in k}
    plain.load_state_dict({k: v for k, v in own.items() if ".shifts." not in k}, strict=True)
    for module in model.modules():
        if isinstance(module, MotionExcitation):
            torch.nn.init.zeros_(module.bn3.weight)  # sigmoid(0) - 0.5: no excitation
        if isinstance(module, TemporalConv):
            module.conv.weight.zero_()[:, 0, 1] = 1
    clip = torch.randn(1, 3, 2, 64, 64)

    expected: Tensor = plain(clip[0].transpose(0, 1)).mean(0)
    torch.testing.assert_close(model(clip)[0], expected, rtol=1e-4, atol=1e-7)


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 2])
def test_temporal_convolutions_keep_the_channels_last_layout(batch: int) -> None:
    """Also of a slice of channels, and for a batch of 1, whose strides torch may not recognize."""
    conv = TemporalConv(8, length_of(4), shifted=True)
    conv.conv.weight.copy_(torch.randn(8, 1, 3))
    x = torch.randn(batch * 4, 24, 5, 6).to(memory_format=torch.channels_last)[:, 8:16]
    clips = x.reshape(batch, 4, 8, 5, 6)
    padded = F.pad(clips, (0, 0, 0, 0, 0, 0, 1, 1))
    taps = conv.conv.weight[:, 0, :, None, None]
    expected = sum(padded[:, i : i + 4] * taps[:, i] for i in range(3)).flatten(0, 1)

    for given in (x, x.contiguous(memory_format=torch.channels_last), x.contiguous()):
        torch.testing.assert_close(conv(given), expected)
    assert conv(x).is_contiguous(memory_format=torch.channels_last)
