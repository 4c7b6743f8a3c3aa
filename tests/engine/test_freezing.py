"""Frozen parts of a network: what trains, what does not, and copies of it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import ffn
from ffn import backbones

NORMS = (nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm)


def build(name: str, flexible: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model = backbones.build(name, num_classes=3)
    return ffn.convert(model, (2, 4)) if flexible else model


def train(model: nn.Module) -> dict[str, bool]:
    """Take a large step at two frame counts; return for each entry of the state if it changed."""
    before = {key: value.clone() for key, value in model.state_dict().items()}
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    for frames in (2, 4):
        optimizer.zero_grad()
        model(torch.randn(4, 3, frames, 32, 32)).square().sum().backward()
        optimizer.step()
    return {key: not torch.equal(value, before[key]) for key, value in model.state_dict().items()}


@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("tsm_tiny", ("net.conv1", "net.bn1", "net.layer1")),
        ("tea_tiny", ("net.conv1", "net.bn1", "net.layer1")),
        (
            "slowfast_tiny",
            ("slow.stem", "fast.stem", "slow.stages.0", "fast.stages.0", "fusions.0"),
        ),
        ("uniformer_tiny", ("embeds.0", "blocks.0")),
    ],
)
def test_the_first_block_does_not_train(name: str, first: tuple[str, ...], flexible: bool) -> None:
    """The stem and the first block, by names written out here."""
    model = build(name, flexible)
    frozen = ffn.freeze(model, "blocks:1")
    model.eval()
    model.train()
    changed = train(model)

    inside = {key for key in changed if key.startswith(tuple(f"{part}." for part in first))}
    assert set(frozen) <= inside
    assert not any(changed[key] for key in inside)
    assert any(changed[key] for key in changed.keys() - inside)
    counted = [key for key in changed.keys() - inside if key.endswith("num_batches_tracked")]
    assert all(changed[key] for key in counted)

    ffn.unfreeze(model)
    changed = train(model)
    assert any(changed[key] for key in inside)
    assert all(p.requires_grad for p in model.parameters())
    assert all(module.training for module in model.modules())


def test_patterns_freeze_modules_and_parameters() -> None:
    model = build("tsm_tiny", flexible=True)
    names = ffn.freeze(model, ["net.layer[12]", "net.fc.bias"])

    expected = {n for n in model.state_dict() if n.startswith(("net.layer1.", "net.layer2."))}
    parameters = {n for n, _ in model.model.named_parameters()}
    assert set(names) == (expected & parameters) | {"net.fc.bias"}
    for name, module in model.train().model.named_modules():
        if isinstance(module, NORMS):
            assert module.training != name.startswith(("net.layer1.", "net.layer2.")), name
    ffn.unfreeze(model, "net.layer2")
    assert model.train().model.net.layer2[0].bn1["4"].training
    assert not model.train().model.net.layer1[0].bn1["4"].training
    assert len(ffn.freeze(build("tsm_tiny"), "net.layer4.0.bn1.weight")) == 1
    assert ffn.unfreeze(model, []) == ()
    assert not model.model.net.fc.bias.requires_grad


def test_a_single_parameter_of_a_norm_does_not_stop_its_statistics() -> None:
    model = build("tsm_tiny")
    ffn.freeze(model, "net.bn1.weight")
    changed = train(model.train())
    assert not changed["net.bn1.weight"]
    assert changed["net.bn1.bias"]
    assert changed["net.bn1.running_mean"]


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


@pytest.mark.parametrize("flexible", [False, True])
def test_norms_without_parameters_are_frozen_with_their_block(flexible: bool) -> None:
    model = backbones.build("tsm_tiny", num_classes=3)
    for block in (model.net.layer1[0], model.net.layer2[0]):
        block.bn1 = nn.BatchNorm2d(block.bn1.num_features, affine=False)
    model = ffn.convert(model, (2, 4)) if flexible else model
    ffn.freeze(model, "blocks:1")
    changed = train(model.train())
    moved = {key for key, is_new in changed.items() if is_new and ".bn1." in key}
    assert not {key for key in moved if key.startswith(("net.bn1.", "net.layer1."))}
    assert any(key.startswith("net.layer2.0.bn1.") for key in moved)
    ffn.unfreeze(model)
    assert train(model.train())[f"net.layer1.0.bn1.{'4.' if flexible else ''}running_mean"]


def test_what_cannot_be_frozen() -> None:
    model = build("tsm_tiny")
    with pytest.raises(
        ValueError, match=r"'net.layr1' matches no module; did you mean net\.layer1"
    ):
        ffn.freeze(model, "net.layr1")
    with pytest.raises(ValueError, match="blocks:5; a TSM has 4 blocks"):
        ffn.freeze(model, "blocks:5")
    assert all(p.requires_grad for p in model.parameters())
