"""TSM against timm's own network with a hand-written shift, and where networks of timm shift."""

from __future__ import annotations

import re

import pytest
import timm
import torch
from torch import Tensor, nn

from ffn import backbones
from ffn.backbones.tsm import shiftable_convs
from ffn.core import convert


def hook_shift(conv: nn.Module, frames: int) -> None:
    """Shift the input of a convolution, in place of an earlier hook."""

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

    conv._forward_pre_hooks.clear()
    conv.register_forward_pre_hook(shift)


@pytest.mark.parametrize("timm_name", ["resnet18", "mobilenetv2_050"])
def test_equals_timm_with_hooks(timm_name: str) -> None:
    torch.manual_seed(0)
    model = backbones.build(f"tsm.{timm_name}", num_classes=4).eval()
    plain = timm.create_model(timm_name, num_classes=4).eval()
    plain.load_state_dict(model.net.state_dict(), strict=True)  # keys are timm's
    assert list(plain.state_dict()) == list(model.net.state_dict())
    clips = [torch.randn(2, 3, frames, 32, 32) for frames in (1, 2, 5)]

    for clip in clips:
        for name in model.shifted:
            hook_shift(plain.get_submodule(name.removeprefix("net.")), clip.shape[2])
        with torch.no_grad():
            expected = [plain(one.transpose(0, 1)).mean(0) for one in clip]
            torch.testing.assert_close(model(clip), torch.stack(expected), rtol=1e-4, atol=1e-6)


def test_every_second_block_of_a_stage_shifts() -> None:
    """Blocks of a ResNet are numbered from 0, layer1.0; those of a RegNet from 1, s1.b1."""
    for name, blocks, first in (("resnet50", 3 + 4 + 6 + 3, 0), ("regnety_002", 1 + 1 + 4 + 7, 1)):
        with torch.device("meta"):
            every, second = (
                backbones.build(f"tsm.{name}", shift_every=number).shifted for number in (1, 2)
            )
        assert len(every) == blocks
        index = {conv: int(re.findall(r"\d+", conv)[1]) for conv in every}
        assert [*second] == [conv for conv in every if (index[conv] - first) % 2 == 0]


def test_classifier_starts_small_and_has_dropout() -> None:
    torch.manual_seed(0)
    model = backbones.build("tsm_r18", num_classes=50)

    assert model.net.drop_rate == 0.5
    assert not model.net.fc.bias.any()
    assert 0.8e-3 < model.net.fc.weight.std() < 1.2e-3


# Number of convolutions that shift, and their names with # for numbers.
PLACES = {
    "resnet18": (8, {"layer#.#.conv#"}),
    "seresnext26t_32x4d": (8, {"layer#.#.conv#"}),
    "regnety_004": (16, {"s#.b#.conv#.conv"}),
    "gernet_s": (14, {"stages.#.#.conv#_kxk.conv", "stages.#.#.conv#_#x#.conv"}),
    "convnext_atto": (12, {"stages.#.blocks.#.conv_dw"}),
    "mobilenetv2_035": (10, {"blocks.#.#.conv_pw"}),
    "mobilenetv3_small_050": (7, {"blocks.#.#.conv_pw"}),
    "mobilenetv4_conv_small": (10, {"blocks.#.#.pw_exp.conv", "blocks.#.#.dw_start.conv"}),
    "mnasnet_small": (10, {"blocks.#.#.conv_dw", "blocks.#.#.conv_pw"}),
    "efficientnet_b0": (9, {"blocks.#.#.conv_pw"}),
    "efficientnetv2_rw_t": (34, {f"blocks.#.#.{n}" for n in ("conv", "conv_exp", "conv_pw")}),
    "darknet17": (5, {"stages.#.blocks.#.conv#.conv"}),
}
REFUSED = {  # and the class in the message
    "tsm.densenet121": "DenseNet",
    "tsm.lcnet_035": "MobileNetV3",
    "tsm.efficientnet_cc_b0_4e": "CondConv2d",
    "tea.resnet18": "has no Res2Net blocks",
}


def test_places() -> None:
    for name, expected in PLACES.items():
        with torch.device("meta"):
            convs = shiftable_convs(timm.create_model(name))
        assert (len(convs), {re.sub(r"\d+", "#", conv) for conv in convs}) == expected, name


def test_networks_of_other_blocks_are_refused() -> None:
    for name, kind in REFUSED.items():
        with torch.device("meta"), pytest.raises(ValueError, match=kind):
            backbones.build(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLACES)
def test_the_image_passes_the_shifts_through_shortcuts(name: str) -> None:
    """With zeros in place of all shifting convolutions, logits depend on every frame.

    They would not after a single block without a shortcut.
    """
    torch.manual_seed(0)
    model = backbones.build(f"tsm.{name}", num_classes=3).eval()
    for parameter in model.parameters():  # blocks that start as identities
        if parameter.ndim == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.0)
    for conv in model.shifted:
        model.get_submodule(conv).register_forward_hook(lambda module, args, output: output * 0)
    clip = torch.randn(1, 3, 3, 128, 128, requires_grad=True)

    model(clip).square().sum().backward()

    assert clip.grad.abs().amax((0, 1, 3, 4)).min() > 0
    assert convert(model, (2, 4)).report.private
