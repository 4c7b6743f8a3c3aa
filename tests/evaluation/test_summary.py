"""The table of a network's stages, against hooks, formulas and the counters of whole networks."""

from __future__ import annotations

import re

import pytest
import torch

import ffn
from ffn import backbones
from ffn.evaluation import count_macs, count_parameters


def rows(text: str) -> dict[str, list[str]]:
    """Cells by stage; columns are two spaces apart or more."""
    lines = [re.split(r" {2,}", line.strip()) for line in text.splitlines()[2:]]
    return {cells[0]: cells[1:] for cells in lines}


def number(cell: str) -> float:
    return float(cell.replace(",", ""))


def test_a_plain_network_by_hand() -> None:
    model = backbones.build("tsm_tiny", num_classes=5)
    text = ffn.summary(model, frames=3, size=32)
    table = rows(text)

    assert text.splitlines()[0] == "TSM; clip (1, 3, 3, 32, 32)"
    assert text.splitlines()[1].split() == ["stage", "output", "parameters", "M", "MACs"]
    layers = [f"net.layer{i}" for i in (1, 2, 3, 4)]
    assert list(table) == ["net.conv1", "net.bn1", *layers, "net.fc", "total"]
    # Stage 1: two 3 x 3 convolutions of 16 channels and their norms, on 3 frames of 16 x 16.
    weights = 2 * 9 * 16 * 16
    macs = weights * 3 * 16 * 16
    assert table["net.layer1"] == ["3x16x16x16", f"{weights + 4 * 16:,}", f"{macs / 1e6:.2f}"]
    assert table["net.fc"] == ["3x5", str(128 * 5 + 5), "0.00"]


@pytest.mark.parametrize(
    "name", ["tsm_tiny", "tea_tiny", "slowfast_tiny", "uniformer_tiny", "vit_tiny"]
)
@pytest.mark.parametrize("form", ["plain", "flexible", "extracted", "fused"])
def test_stages_add_up(name: str, form: str) -> None:
    plain = backbones.build(name, num_classes=5).eval()
    flexible = ffn.convert(plain, (2, 4)).eval()
    model = {
        "plain": lambda: plain,
        "flexible": lambda: flexible,
        "extracted": lambda: ffn.extract(flexible, 2),
        "fused": lambda: ffn.fuse(flexible, 3, example=torch.randn(1, 3, 3, 32, 32)),
    }[form]()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    text = ffn.summary(model, frames=3, size=32)
    table = rows(text)
    total = table.pop("total")
    macs = count_macs(model, torch.randn(1, 3, 3, 32, 32))

    assert total[0] == "1x5"
    assert number(total[1]) == count_parameters(model)
    assert sum(number(cells[1]) for cells in table.values()) == count_parameters(model)
    assert number(total[-1]) == pytest.approx(macs / 1e6, abs=0.006)
    assert sum(number(c[-1]) for c in table.values()) == pytest.approx(macs / 1e6, abs=0.1)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    if form == "flexible":
        added = count_parameters(model) - count_parameters(model, 2)
        assert number(total[2]) == added  # two counts: one more set of private parameters
        assert sum(number(cells[2]) for cells in table.values()) == added
        assert text.splitlines()[0].startswith(f"{type(plain).__name__}, frame-flexible at 2, 4; ")
        assert "sub-network 4;" in text.splitlines()[0]


def test_stages_of_networks_of_timm() -> None:
    mobile = rows(ffn.summary(backbones.build("tsm_mobilenetv2", num_classes=5), 2, size=64))
    assert [f"net.blocks.{i}" for i in range(7)] == [n for n in mobile if "blocks" in n]
    convnext = rows(ffn.summary(backbones.build("tsm.convnext_atto", num_classes=5), 2, size=64))
    assert [f"net.stages.{i}" for i in range(4)] == [n for n in convnext if "stages" in n]
    slowfast = rows(ffn.summary(backbones.build("slowfast_tiny", num_classes=5), 5, size=32))
    assert slowfast["slow.stages.3"][0].startswith("1x512x3x")  # ceil(5 / 2) slow frames
    assert slowfast["fast.stages.3"][0].startswith("1x128x5x")
    model = backbones.build("tsm.resnet18", num_classes=5, in_chans=8)
    assert "clip (1, 8, 2, 64, 64)" in ffn.summary(model, 2, size=64, channels=8)
