"""Where a TSM shifts, for a network of each family of timm's CNNs; read by a person."""

from __future__ import annotations

import re

import pytest
import timm
import torch

from ffn import backbones
from ffn.backbones.tsm import NORMS, shiftable_convs
from ffn.core import convert
from ffn.core.convert import NORMS as PRIVATE

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
    "vgg11": "VGG",
    "densenet121": "DenseNet",
    "lcnet_035": "MobileNetV3",
    "efficientnet_cc_b0_4e": "CondConv2d",
    "resnetv2_50x1_bit": "ResNetV2",
    "regnetz_b16_evos": "ByobNet",
}


def test_places() -> None:
    for name, expected in PLACES.items():
        with torch.device("meta"):
            convs = shiftable_convs(timm.create_model(name))
        assert (len(convs), {re.sub(r"\d+", "#", conv) for conv in convs}) == expected, name


def test_networks_of_other_blocks_are_refused() -> None:
    for name, kind in REFUSED.items():
        with torch.device("meta"), pytest.raises(ValueError, match=kind):
            backbones.build(f"tsm.{name}")


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


def test_the_norms_are_those_of_convert() -> None:
    assert NORMS == PRIVATE
