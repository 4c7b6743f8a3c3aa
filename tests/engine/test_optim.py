"""Parameter groups by name, and the learning rate by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from engine_toys import tiny
from torch import nn

from ffn import backbones
from ffn.core import convert
from ffn.engine.optim import (
    decay_layers,
    layer_numbers,
    learning_rate,
    set_learning_rate,
    standard_groups,
    tsm_groups,
)

MAKERS = pytest.mark.parametrize("make", [tsm_groups, standard_groups])


def names_in(groups: list[dict[str, Any]], model: nn.Module) -> dict[str, set[str]]:
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    return {group["name"]: {name_of[id(p)] for p in group["params"]} for group in groups}


def test_tsm_groups_of_resnet18() -> None:
    model = convert(backbones.build("tsm_r18", num_classes=7), (4, 8, 16)).model
    groups = tsm_groups(model, 5e-4)
    found = names_in(groups, model)

    assert found["head weight"] == {"net.fc.weight"}
    assert found["head bias"] == {"net.fc.bias"}
    assert "biases" not in found  # ResNets have no other
    norms = {n for n, _ in model.named_parameters() if ".bn" in n or "downsample.1." in n}
    assert found["norms"] == norms
    assert len(norms) == 20 * 2 * 3  # ResNet-18 has 20 norms
    assert "net.layer1.0.conv1.site.4.weight" in found["weights"]
    assert len(found["weights"]) == 20 + 8 * 3  # convolutions, and 8 sites
    optimizer = torch.optim.SGD(groups, lr=1.0)
    set_learning_rate(optimizer, 0.02)
    rules = {g["name"]: (g["lr"], g["weight_decay"]) for g in optimizer.param_groups}
    assert rules == {
        "weights": (0.02, 5e-4),
        "norms": (0.02, 0),
        "head weight": (0.1, 5e-4),
        "head bias": (0.2, 0),
    }


def test_biases_of_recurrent_layers_have_no_decay() -> None:
    model = nn.ModuleList([nn.GRU(4, 4), nn.Linear(4, 4)])
    found = names_in(tsm_groups(model, 0.1), model)
    assert found["biases"] == {"0.bias_ih_l0", "0.bias_hh_l0"}


@MAKERS
def test_every_trained_parameter_is_in_one_group(make: Any) -> None:
    """Also every private head."""
    model = convert(tiny(), (2, 4), private="all").model
    next(model.parameters()).requires_grad_(False)
    groups = make(model, 0.1)
    grouped = [id(p) for group in groups for p in group["params"]]

    assert sorted(grouped) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    if make is tsm_groups:
        found = names_in(groups, model)
        assert found["head weight"] == {"net.fc.2.weight", "net.fc.4.weight"}
        assert found["head bias"] == {"net.fc.2.bias", "net.fc.4.bias"}


def test_standard_groups_have_no_decay_on_vectors() -> None:
    groups = standard_groups(convert(tiny(), (2, 4)), 0.1)

    assert [(g["lr_scale"], g["weight_decay"]) for g in groups] == [(1, 0.1), (1, 0)]
    assert {p.ndim >= 2 for p in groups[0]["params"]} == {True}
    assert {p.ndim for p in groups[1]["params"]} == {1}


# Prefixes of parameter names by layer, from the input to the head; written down by hand.
STAGES = [1, 2, 3, 4]
LAYERS = {
    "tsm_tiny": ["net.conv1 net.bn1", *(f"net.layer{s}.0" for s in STAGES), "net.fc"],
    "slowfast_tiny": [
        "slow.stem fast.stem",
        *(f"slow.stages.{s - 1}.0 fast.stages.{s - 1}.0 fusions.{s - 1}" for s in STAGES),
        "head",
    ],
    "uniformer_tiny": [
        "embeds.0",
        "blocks.0.0",
        *(f"embeds.{s} blocks.{s}.0" for s in STAGES[:3]),
        "norm head",
    ],
    "vit_tiny": ["patch_embed", *(f"blocks.{b}" for b in range(5)), "fc_norm head"],
}
LAYERS["tea_tiny"] = LAYERS["tsm_tiny"]


@MAKERS
@pytest.mark.parametrize("name", LAYERS)
def test_layers_by_hand(name: str, make: Any) -> None:
    """The number of each parameter's layer, and its rate, which falls by half per layer."""
    model = convert(backbones.build(name, num_classes=3), (2, 4))
    layers = [[f"model.{start}." for start in starts.split()] for starts in LAYERS[name]]

    numbers = layer_numbers(model)

    assert list(numbers) == [key for key, _ in model.named_parameters()]
    for number, starts in enumerate(layers):
        own = {key for key in numbers if key.startswith(tuple(starts))}
        assert own == {key for key in numbers if numbers[key] == number}
        assert all(any(key.startswith(start) for key in own) for start in starts)

    plain = make(model, 0.1)
    group_of = {id(p): group for group in plain for p in group["params"]}
    layer_of = {id(p): numbers[key] for key, p in model.named_parameters()}
    assert decay_layers(plain, model, 1.0) is plain
    groups = decay_layers(plain, model, 0.5)
    assert sum(len(group["params"]) for group in groups) == len(group_of)
    for group in groups:
        for p in group["params"]:
            expected = group_of[id(p)]["lr_scale"] * 0.5 ** (len(layers) - 1 - layer_of[id(p)])
            assert group["lr_scale"] == expected
            assert group["weight_decay"] == group_of[id(p)]["weight_decay"]


WARM_UP = {"warmup_epochs": 2}
COSINE = {"schedule": "cosine", "final_lr": 0.001}


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({}, {0: 2e-2, 19.99: 2e-2, 20: 2e-3, 39.9: 2e-3, 40: 2e-4}),
        (COSINE, {0: 0.02, 12.5: 0.001 + 0.019 * (1 + math.sqrt(0.5)) / 2, 25: 0.0105, 50: 0.001}),
        (WARM_UP, {0: 2e-4, 1: 2e-4 + 0.5 * 0.0198, 2: 2e-2}),
        (COSINE | WARM_UP, {0: 2e-4, 1: 2e-4 + 0.5 * 0.0198, 2: 2e-2, 26: 0.0105}),
    ],
)
def test_schedules(options: dict[str, Any], rates: dict[float, float]) -> None:
    given = {"schedule": "step", "milestones": [20, 40], "gamma": 0.1, "final_lr": 0.0}
    given |= {"lr": 0.02, "epochs": 50, "warmup_epochs": 0.0, **options}
    found = {epoch: learning_rate(epoch, **given) for epoch in rates}
    assert found == pytest.approx(rates, rel=1e-12)
