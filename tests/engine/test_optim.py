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
from ffn.engine.optim import learning_rate, set_learning_rate, standard_groups, tsm_groups


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
    rules = {g["name"]: (g["lr_scale"], g["weight_decay"]) for g in groups}
    assert rules == {
        "weights": (1, 5e-4),
        "norms": (1, 0),
        "head weight": (5, 5e-4),
        "head bias": (10, 0),
    }


def test_tsm_groups_of_a_network_with_other_biases() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Linear(4, 4), nn.Linear(4, 2))
    groups = tsm_groups(model, 0.1)

    assert names_in(groups, model) == {
        "weights": {"0.weight", "1.weight"},
        "biases": {"0.bias", "1.bias"},
        "head weight": {"2.weight"},
        "head bias": {"2.bias"},
    }
    biases = next(group for group in groups if group["name"] == "biases")
    assert (biases["lr_scale"], biases["weight_decay"]) == (2, 0)


@pytest.mark.parametrize("private", ["norms", "none", "all"])
@pytest.mark.parametrize("make", [tsm_groups, standard_groups])
def test_every_parameter_is_in_one_group(make: Any, private: str) -> None:
    model = convert(tiny(), (2, 4), private=private)
    grouped = [id(p) for group in make(model, 0.1) for p in group["params"]]

    assert sorted(grouped) == sorted(id(p) for p in model.parameters())


def test_every_private_head_is_one() -> None:
    model = convert(tiny(), (2, 4), private="all").model
    found = names_in(tsm_groups(model, 0.1), model)

    assert found["head weight"] == {"net.fc.2.weight", "net.fc.4.weight"}
    assert found["head bias"] == {"net.fc.2.bias", "net.fc.4.bias"}


def test_tsm_groups_need_a_head() -> None:
    with pytest.raises(ValueError, match=r"optim\.groups=tsm needs a linear classifier"):
        tsm_groups(nn.Conv2d(3, 3, 1), 0.1)


def test_standard_groups_have_no_decay_on_vectors() -> None:
    model = convert(tiny(), (2, 4))
    groups = standard_groups(model, 0.1)

    assert [(g["lr_scale"], g["weight_decay"]) for g in groups] == [(1, 0.1), (1, 0)]
    assert {p.ndim >= 2 for p in groups[0]["params"]} == {True}
    assert {p.ndim for p in groups[1]["params"]} == {1}


def test_frozen_parameters_are_in_no_group() -> None:
    model = tiny()
    model.net.fc.weight.requires_grad_(False)

    for make in (tsm_groups, standard_groups):
        grouped = {id(p) for group in make(model, 0.1) for p in group["params"]}
        assert id(model.net.fc.weight) not in grouped
        assert len(grouped) == len(list(model.parameters())) - 1


def rate(epoch: float, **changes: Any) -> float:
    options = {
        "lr": 0.02,
        "epochs": 50,
        "schedule": "step",
        "milestones": [20, 40],
        "gamma": 0.1,
        "final_lr": 0.0,
        "warmup_epochs": 0.0,
    }
    return learning_rate(epoch, **{**options, **changes})


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, 2e-2), (19.99, 2e-2), (20, 2e-3), (39.9, 2e-3), (40, 2e-4)]
)
def test_step_schedule(epoch: float, expected: float) -> None:
    assert rate(epoch) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (0, 0.02),
        (12.5, 0.001 + 0.019 * (1 + math.sqrt(0.5)) / 2),
        (25, 0.0105),
        (37.5, 0.001 + 0.019 * (1 - math.sqrt(0.5)) / 2),
        (50, 0.001),
    ],
)
def test_cosine_schedule(epoch: float, expected: float) -> None:
    assert rate(epoch, schedule="cosine", final_lr=0.001) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("schedule", ["step", "cosine"])
@pytest.mark.parametrize(("epoch", "expected"), [(0, 2e-4), (1, 2e-4 + 0.5 * 0.0198), (2, 2e-2)])
def test_warm_up(schedule: str, epoch: float, expected: float) -> None:
    found = rate(epoch, schedule=schedule, warmup_epochs=2)

    assert found == pytest.approx(expected, rel=1e-12)


def test_cosine_after_warm_up() -> None:
    found = rate(6, schedule="cosine", warmup_epochs=2, epochs=10)

    assert found == pytest.approx(0.01, rel=1e-12)  # half of the 8 epochs that are left


def test_warm_up_for_the_whole_training() -> None:
    assert rate(1, schedule="cosine", warmup_epochs=2, epochs=2) == pytest.approx(0.0101)


def test_groups_scale_the_rate() -> None:
    model = tiny()
    optimiser = torch.optim.SGD(tsm_groups(model, 0.1), lr=1.0)

    set_learning_rate(optimiser, 0.02)

    rates = {group["name"]: group["lr"] for group in optimiser.param_groups}
    assert rates == pytest.approx(
        {"weights": 0.02, "norms": 0.02, "head weight": 0.1, "head bias": 0.2}
    )
