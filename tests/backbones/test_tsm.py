"""TSM against timm's own network with a hand-written shift in front of its convolutions."""

from __future__ import annotations

import re

import pytest
import timm
import torch
from torch import Tensor, nn

from ffn import backbones
from ffn.backbones.tsm import shiftable_convs, tsm_of
from ffn.layers import ShiftConv2d

RESNET18 = [f"layer{stage}.{block}.conv1" for stage in (1, 2, 3, 4) for block in (0, 1)]


def hook_shift(conv: nn.Module, frames: int) -> None:
    def shift(module: nn.Module, args: tuple[Tensor]) -> Tensor:
        (x,) = args
        fold = x.shape[1] // 8
        clips = []
        for clip in x.split(frames):
            zero = torch.zeros_like(clip[:1])
            later, earlier = torch.cat([clip[1:], zero]), torch.cat([zero, clip[:-1]])
            parts = later[:, :fold], earlier[:, fold : 2 * fold], clip[:, 2 * fold :]
            clips.append(torch.cat(parts, 1))
        return torch.cat(clips)

    conv.register_forward_pre_hook(shift)


@pytest.mark.parametrize("frames", [1, 2, 5])
@pytest.mark.parametrize("timm_name", ["resnet18", "mobilenetv2_050"])
def test_equals_timm_with_hooks(timm_name: str, frames: int) -> None:
    torch.manual_seed(0)
    model = backbones.build(f"tsm.{timm_name}", num_classes=4).eval()
    plain = timm.create_model(timm_name, num_classes=4).eval()
    plain.load_state_dict(model.net.state_dict(), strict=True)  # keys are timm's
    assert list(plain.state_dict()) == list(model.net.state_dict())
    for name, module in model.net.named_modules():
        if isinstance(module, ShiftConv2d):
            hook_shift(plain.get_submodule(name), frames)
    clip = torch.randn(2, 3, frames, 32, 32)

    with torch.no_grad():
        expected = [plain(one.transpose(0, 1)).mean(0) for one in clip]
        torch.testing.assert_close(model(clip), torch.stack(expected), rtol=1e-4, atol=1e-6)


def test_convolutions_that_shift() -> None:
    names = [n for n, m in backbones.build("tsm_r18").net.named_modules() if type(m) is ShiftConv2d]
    assert names == RESNET18

    bottlenecks = shiftable_convs(timm.create_model("resnet50"))
    assert len(bottlenecks) == 3 + 4 + 6 + 3
    assert all(conv == f"{block}.conv1" for conv, block in bottlenecks.items())


@pytest.mark.parametrize(
    ("timm_name", "block"), [("regnety_002", r"s(\d+)\.b(\d+)"), ("resnet50", r"layer(\d+)\.(\d+)")]
)
def test_every_second_block_of_a_stage_shifts(timm_name: str, block: str) -> None:
    """Counted by hand from timm's names: blocks of a RegNet are numbered from 1, s1.b1."""
    with torch.device("meta"):
        places = {
            every: [
                tuple(map(int, re.match(rf"net\.{block}\.", name).groups()))
                for name in backbones.build(f"tsm.{timm_name}", shift_every=every).shifted
            ]
            for every in (1, 2)
        }

    first = min(index for _, index in places[1])
    assert len(places[1]) == sum({"regnety_002": (1, 1, 4, 7), "resnet50": (3, 4, 6, 3)}[timm_name])
    assert places[2] == [(s, index) for s, index in places[1] if (index - first) % 2 == 0]


@pytest.mark.parametrize("timm_name", ["regnety_002", "mobilenetv3_small_050", "convnext_atto"])
def test_other_timm_networks_become_one(timm_name: str) -> None:
    torch.manual_seed(0)
    model = backbones.build(f"tsm.{timm_name}", num_classes=3).eval()
    for parameter in model.parameters():  # blocks that start as identities, as in ConvNeXt
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)
        elif parameter.ndim > 1:
            nn.init.kaiming_normal_(parameter)
    clip = torch.randn(1, 3, 4, 32, 32)

    assert any(isinstance(m, ShiftConv2d) for m in model.modules())
    with torch.no_grad():
        forth, back = model(clip), model(clip.flip(2))
    assert forth.shape == (1, 3)
    assert not torch.allclose(
        forth, back, rtol=1e-5, atol=0
    )  # the output depends on the order of frames


def test_per_frame_network_would_not_see_the_order() -> None:
    model = backbones.build("tsm_tiny", num_classes=3, width=8).eval()
    clip = torch.randn(1, 3, 4, 32, 32)
    for module in model.modules():
        if isinstance(module, ShiftConv2d):
            module.divisor = 10**6  # shifts no channel

    torch.testing.assert_close(model(clip), model(clip.flip(2)), rtol=1e-5, atol=1e-7)


def test_classifier_starts_small_and_has_dropout() -> None:
    torch.manual_seed(0)
    model = backbones.build("tsm_r18", num_classes=50)

    assert model.net.drop_rate == 0.5
    assert not model.net.fc.bias.any()
    assert 0.8e-3 < model.net.fc.weight.std() < 1.2e-3


def test_tiny_is_tiny() -> None:
    model = backbones.build("tsm_tiny", num_classes=12)

    assert sum(p.numel() for p in model.parameters()) < 0.6e6


def test_other_numbers_of_input_channels() -> None:
    model = tsm_of("resnet18", num_classes=2, in_chans=5).eval()
    assert len(model.shifted) == 8
    assert model(torch.randn(1, 5, 3, 32, 32)).shape == (1, 2)
