"""Parameter groups by name, and the learning rate by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import timm
import torch
from engine_toys import tiny
from timm.optim import param_groups_layer_decay
from torch import nn

from ffn import backbones
from ffn.core import convert
from ffn.engine.optim import (
    decay_layers,
    layer_numbers,
    learning_rate,
    scaled_lr,
    set_learning_rate,
    standard_groups,
    tsm_groups,
)


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


# Prefixes of parameter names by layer, from the input to the head; written down by hand.
LAYERS = {
    "tsm_tiny": [
        ["net.conv1", "net.bn1"],
        ["net.layer1.0"],
        ["net.layer2.0"],
        ["net.layer3.0"],
        ["net.layer4.0"],
        ["net.fc"],
    ],
    "tsm_r18": [
        ["net.conv1", "net.bn1"],
        *[[f"net.layer{stage}.{block}"] for stage in (1, 2, 3, 4) for block in (0, 1)],
        ["net.fc"],
    ],
    "tsm_mobilenetv2": [
        ["net.conv_stem", "net.bn1"],
        *[
            [f"net.blocks.{stage}.{block}"]
            for stage, depth in enumerate((1, 2, 3, 4, 3, 3))
            for block in range(depth)
        ],
        ["net.blocks.6.0", "net.conv_head", "net.bn2"],
        ["net.classifier"],
    ],
    "slowfast_tiny": [
        ["slow.stem", "fast.stem"],
        *[[f"slow.stages.{s}.0", f"fast.stages.{s}.0", f"fusions.{s}"] for s in range(4)],
        ["head"],
    ],
    "uniformer_tiny": [
        ["embeds.0"],
        ["blocks.0.0"],
        ["embeds.1", "blocks.1.0"],
        ["embeds.2", "blocks.2.0"],
        ["embeds.3", "blocks.3.0"],
        ["norm", "head"],
    ],
    "slowonly_r50": [
        ["pathway.stem"],
        *[
            [f"pathway.stages.{stage}.{block}"]
            for stage, depth in enumerate((3, 4, 6, 3))
            for block in range(depth)
        ],
        ["head"],
    ],
}
LAYERS["tea_tiny"] = LAYERS["tsm_tiny"]


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_by_hand(name: str, converted: bool) -> None:
    model = backbones.build(name, num_classes=3)
    prefix = "model." if converted else ""
    model = convert(model, (2, 4)) if converted else model
    layers = [tuple(f"{prefix}{start}." for start in starts) for starts in LAYERS[name]]

    numbers = layer_numbers(model)

    assert list(numbers) == [key for key, _ in model.named_parameters()]
    assert set(numbers.values()) == set(range(len(layers)))
    for key, number in numbers.items():
        assert key.startswith(layers[number]), (key, number)
    for starts in layers:
        assert all(any(key.startswith(start) for key in numbers) for start in starts)


@pytest.mark.parametrize(
    "name", ["resnet18", "res2net50_26w_4s", "mobilenetv3_small_050", "convnext_atto"]
)
def test_layers_are_those_of_timm(name: str) -> None:
    model = backbones.build(f"{'tea' if 'res2net' in name else 'tsm'}.{name}", num_classes=3)
    net = timm.create_model(name, num_classes=3)
    names = {id(p): key for key, p in net.named_parameters()}
    expected = {
        names[id(p)]: group["lr_scale"]
        for group in param_groups_layer_decay(net, layer_decay=0.7)
        for p in group["params"]
    }

    groups = decay_layers(standard_groups(model, 0.1), model, 0.7)

    names = {id(p): key.removeprefix("net.") for key, p in model.named_parameters()}
    found = {names[id(p)]: group["lr_scale"] for group in groups for p in group["params"]}
    assert set(expected) <= set(found)  # TEA adds some of its own
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=1e-12)
    assert len(set(expected.values())) > 8


def test_a_head_outside_of_the_network_that_tells_its_layers() -> None:
    net = timm.create_model("resnet18", num_classes=0)
    numbers = layer_numbers(nn.Sequential(net, nn.Linear(512, 3)))

    assert numbers["0.conv1.weight"] == 0
    assert numbers["0.layer4.1.conv2.weight"] == 8
    assert numbers["1.weight"] == numbers["1.bias"] == 9


@pytest.mark.parametrize("make", [tsm_groups, standard_groups])
@pytest.mark.parametrize("name", ["tsm_tiny", "tea_tiny", "slowfast_tiny", "uniformer_tiny"])
def test_decayed_groups(name: str, make: Any) -> None:
    model = convert(backbones.build(name, num_classes=3), (2, 4))
    next(model.parameters()).requires_grad_(False)
    plain = make(model, 0.1)
    numbers = layer_numbers(model)
    name_of = {id(p): key for key, p in model.named_parameters()}

    groups = decay_layers(plain, model, 0.5)

    kind_of = {id(p): group for group in plain for p in group["params"]}
    grouped = [id(p) for group in groups for p in group["params"]]
    assert len(set(grouped)) == len(grouped) == len(name_of) - 1
    assert {*grouped} == {*kind_of}
    for group in groups:
        layers = {numbers[name_of[id(p)]] for p in group["params"]}
        kinds = {kind_of[id(p)]["name"] for p in group["params"]}
        assert len(layers) == len(kinds) == 1
        layer, kind = layers.pop(), kind_of[id(group["params"][0])]
        assert group["name"] == f"{kind['name']}, layer {layer} of 5"
        assert group["lr_scale"] == kind["lr_scale"] * 0.5 ** (5 - layer)
        assert group["weight_decay"] == kind["weight_decay"]
    assert len({group["name"] for group in groups}) == len(groups)

    optimizer = torch.optim.SGD(groups, lr=1.0)
    set_learning_rate(optimizer, 0.01)
    head = max(group["lr"] for group in optimizer.param_groups)
    assert head == pytest.approx(0.1 if make is tsm_groups else 0.01)


def test_no_decay_leaves_the_groups_of_running_runs() -> None:
    model = tiny()
    groups = tsm_groups(model, 0.1)

    assert decay_layers(groups, model, 1.0) is groups


@pytest.mark.parametrize(
    ("batch_size", "base_batch_size", "expected"),
    [(64, 64, 0.02), (256, 64, 0.08), (16, 64, 0.005), (48, 32, 0.03), (512, None, 0.02)],
)
def test_rate_in_proportion_to_the_batch(
    batch_size: int, base_batch_size: int | None, expected: float
) -> None:
    assert scaled_lr(0.02, batch_size, base_batch_size) == pytest.approx(expected, rel=1e-12)


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


def test_groups_scale_the_rate() -> None:
    model = tiny()
    optimizer = torch.optim.SGD(tsm_groups(model, 0.1), lr=1.0)

    set_learning_rate(optimizer, 0.02)

    rates = {group["name"]: group["lr"] for group in optimizer.param_groups}
    assert rates == pytest.approx(
        {"weights": 0.02, "norms": 0.02, "head weight": 0.1, "head bias": 0.2}
    )
