"""Frozen parts of a network: what trains, what does not, and copies of it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import ffn
from ffn import backbones
from ffn.core import NORMS

# Stem and first block of each family, by names written out here.
FIRST = {
    "tsm_tiny": ("net.conv1", "net.bn1", "net.layer1"),
    "tea_tiny": ("net.conv1", "net.bn1", "net.layer1"),
    "slowfast_tiny": ("slow.stem", "fast.stem", "slow.stages.0", "fast.stages.0", "fusions.0"),
    "uniformer_tiny": ("embeds.0", "blocks.0"),
}


def build(name: str, flexible: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model = backbones.build(name, num_classes=3)
    return ffn.convert(model, (2, 4)) if flexible else model


def moved(model: nn.Module) -> set[str]:
    """Take a large step at two frame counts; return the entries of the state that change."""
    model.eval()
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    for frames in (2, 4):
        optimizer.zero_grad()
        model(torch.randn(4, 3, frames, 32, 32)).square().sum().backward()
        optimizer.step()
    return {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}


def inside(names: set[str], parts: tuple[str, ...]) -> set[str]:
    return {name for name in names if name.startswith(tuple(f"{part}." for part in parts))}


@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize("name", FIRST)
def test_the_first_block_does_not_train(name: str, flexible: bool) -> None:
    model = build(name, flexible)
    known = {*model.state_dict()}
    frozen = ffn.freeze(model, "blocks:1")
    changed = moved(model)

    assert {*frozen} <= inside(known, FIRST[name])
    assert not inside(changed, FIRST[name])
    counters = {key for key in known if key.endswith("num_batches_tracked")}
    assert counters - inside(counters, FIRST[name]) <= changed

    ffn.unfreeze(model)
    assert inside(moved(model), FIRST[name])
    assert all(p.requires_grad for p in model.parameters())
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize("private", ["norms", "all"])
def test_a_linear_probe_trains_the_classifier_alone(name: str, private: str) -> None:
    model = ffn.convert(build(name), (2, 4), private=private)
    ffn.freeze(model, "head_only")
    head = "net.fc" if name.startswith("t") else "head"
    assert moved(model) == {key for key in model.state_dict() if key.startswith(f"{head}.")}


def test_patterns_freeze_modules_and_parameters() -> None:
    model = build("tsm_tiny", flexible=True)
    names = ffn.freeze(model, ["net.layer[12]", "net.fc.bias"])

    parts = ("net.layer1", "net.layer2")
    parameters = {n for n, _ in model.model.named_parameters()}
    assert {*names} == inside(parameters, parts) | {"net.fc.bias"}
    for name, module in model.train().model.named_modules():
        if isinstance(module, NORMS):
            assert module.training != bool(inside({name}, parts)), name
    ffn.unfreeze(model, "net.layer2")
    assert model.train().model.net.layer2[0].bn1["4"].training
    assert not model.train().model.net.layer1[0].bn1["4"].training
    assert not model.model.net.fc.bias.requires_grad


def test_a_single_parameter_of_a_norm_does_not_stop_its_statistics() -> None:
    model = build("tsm_tiny")
    ffn.freeze(model, "net.bn1.weight")
    assert {"net.bn1.bias", "net.bn1.running_mean"} <= moved(model) - {"net.bn1.weight"}


def test_copies_stay_frozen_and_belong_to_themselves() -> None:
    model = build("tsm_tiny")
    ffn.freeze(model, "net.layer1")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        ffn.unfreeze(model)
        norm = other.train().net.layer1[0].bn1
        assert not norm.training
        norm.training = True
        other.train()
        assert not norm.training
        assert model.train().net.layer1[0].bn1.training
        ffn.freeze(model, "net.layer1")
    flexible = ffn.convert(model, (2, 4)).train()
    assert not any(bn.training for bn in flexible.model.net.layer1[0].bn1.values())
    assert not any(p.requires_grad for p in flexible.model.net.layer1[0].bn1.parameters())


def test_norms_without_parameters_are_frozen_with_their_block() -> None:
    model = build("tsm_tiny")
    for block in (model.net.layer1[0], model.net.layer2[0]):
        block.bn1 = nn.BatchNorm2d(block.bn1.num_features, affine=False)
    ffn.freeze(model, "blocks:1")
    changed = moved(model)
    assert "net.layer1.0.bn1.running_mean" not in changed
    assert "net.layer2.0.bn1.running_mean" in changed


def test_what_cannot_be_frozen() -> None:
    model = build("tsm_tiny")
    with pytest.raises(ValueError, match=r"did you mean net\.layer1"):
        ffn.freeze(model, "net.layr1")
    with pytest.raises(ValueError, match="blocks:5; a TSM has 4 blocks"):
        ffn.freeze(model, "blocks:5")
    with pytest.raises(ValueError, match="no classifier"):
        ffn.freeze(nn.Sequential(nn.Linear(2, 2)), "head_only")
    assert all(p.requires_grad for p in model.parameters())
