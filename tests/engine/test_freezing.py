"""Frozen parts of a network: what trains, what does not, copies, runs, and processes."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from engine_toys import CPU, build, state_of, weights
from forked import Ranks
from torch import nn

import ffn
from ffn import backbones
from ffn.core import NORMS
from ffn.engine import loop
from ffn.engine.checkpointer import gather_buffers, load_buffers
from ffn.engine.config import ConfigError
from ffn.engine.distributed import World, average_buffers

# Stem and first block of each family, by names written out here.
FIRST = {
    "tsm_tiny": ("net.conv1", "net.bn1", "net.layer1"),
    "tea_tiny": ("net.conv1", "net.bn1", "net.layer1"),
    "slowfast_tiny": ("slow.stem", "fast.stem", "slow.stages.0", "fast.stages.0", "fusions.0"),
    "uniformer_tiny": ("embeds.0", "blocks.0"),
    "vit_tiny": ("patch_embed", "blocks.0"),
}


def network(name: str = "tsm_tiny", **options: str) -> nn.Module:
    torch.manual_seed(0)
    return ffn.convert(backbones.build(name, num_classes=3), (2, 4), **options)


def moved(model: nn.Module) -> set[str]:
    """Take a large step at two frame counts; return the entries of the state that change."""
    model.eval()
    model.train()
    before = state_of(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    for frames in (2, 4):
        optimizer.zero_grad()
        model(torch.randn(4, 3, frames, 32, 32)).square().sum().backward()
        optimizer.step()
    return {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}


def inside(names: set[str], parts: tuple[str, ...]) -> set[str]:
    return {name for name in names if name.startswith(tuple(f"{part}." for part in parts))}


@pytest.mark.parametrize("name", FIRST)
def test_the_first_block_does_not_train(name: str) -> None:
    model = network(name)
    known = {*model.state_dict()}
    frozen = ffn.freeze(model, FIRST[name])
    changed = moved(model)

    assert {*frozen} <= inside(known, FIRST[name])
    assert not inside(changed, FIRST[name])
    counters = {key for key in known if key.endswith("num_batches_tracked")}
    assert counters - inside(counters, FIRST[name]) <= changed

    ffn.unfreeze(model)
    assert inside(moved(model), FIRST[name])
    assert all(p.requires_grad for p in model.parameters())
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize(("name", "private"), [*((n, "norms") for n in FIRST), ("tsm_tiny", "all")])
def test_a_linear_probe_trains_the_classifier_alone(name: str, private: str) -> None:
    model = network(name, private=private)
    ffn.freeze(model, "head_only")
    head = "net.fc" if name.startswith("t") else "head"
    assert moved(model) == {key for key in model.state_dict() if key.startswith(f"{head}.")}


def test_patterns_freeze_modules_and_parameters() -> None:
    model = network()
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


def test_norms_with_one_frozen_parameter_and_without_parameters() -> None:
    """A frozen weight does not stop statistics; a norm without parameters belongs to its block."""
    model = network().model
    for block in (model.net.layer1[0], model.net.layer2[0]):
        block.bn1 = nn.BatchNorm2d(block.bn1["4"].num_features, affine=False)
    ffn.freeze(model, ["net.layer1.0", "net.layer3.0.bn1.4.weight"])
    changed = moved(model)
    assert "net.layer1.0.bn1.running_mean" not in changed
    assert "net.layer2.0.bn1.running_mean" in changed
    assert "net.layer3.0.bn1.4.weight" not in changed
    assert {"net.layer3.0.bn1.4.bias", "net.layer3.0.bn1.4.running_mean"} <= changed


def test_copies_stay_frozen_and_belong_to_themselves() -> None:
    model = backbones.build("tsm_tiny", num_classes=3)
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


def test_what_cannot_be_frozen(videos: Path, tmp_path: Path) -> None:
    model = network()
    with pytest.raises(ValueError, match=r"net\.layer1"):
        ffn.freeze(model, "net.layr1")
    with pytest.raises(ValueError, match="no classifier"):
        ffn.freeze(nn.Sequential(nn.Linear(2, 2)), "head_only")
    assert all(p.requires_grad for p in model.parameters())
    for option, message in {"net.layr1": "layr1", "'*'": "no parameter is left"}.items():
        with pytest.raises(ConfigError, match=message):
            build(videos, tmp_path, f"train.freeze=[{option}]")


@pytest.mark.parametrize(
    ("part", "more"), [("net.layer1", ("train.views=sequential",)), ("norms", ())]
)
def test_a_run_with_a_frozen_part(
    videos: Path, tmp_path: Path, part: str, more: tuple[str, ...]
) -> None:
    """Weights, their average and statistics; with much decay, and an average that moves fast."""
    more = ("optim.weight_decay=0.1", "train.ema_decay=0.5", "optim.milestones=[]", *more)
    run = build(videos, tmp_path / "run", f"train.freeze=[{part}]", "train.epochs=1", *more)
    before = state_of(run.train_step.model)
    loop.train(run)

    names = {*before}
    norms = tuple(name.rpartition(".")[0] for name in names if name.endswith("running_mean"))
    expected = inside(names, norms if part == "norms" else (part,))
    for after in (run.train_step.model.state_dict(), weights(run.folder)):
        same = {name for name in names if torch.equal(after[name], before[name])}
        assert expected == {name for name in same if "num_batches" not in name or name in expected}


def averaged_means(world: World) -> dict[str, float]:
    """Average statistics that are 0 on the first process and 1 on the second."""
    norms = nn.ModuleDict({name: nn.BatchNorm1d(1) for name in ("frozen", "trained")})
    ffn.freeze(norms, "frozen")
    for norm in norms.values():
        norm.running_mean.fill_(world.rank)
    average_buffers(norms, world)
    return {name: norm.running_mean.item() for name, norm in norms.items()}


def test_frozen_statistics_are_not_averaged(two_ranks: Ranks) -> None:
    """A sum of three equal numbers divided by three may be another number."""
    one, two = two_ranks.run(averaged_means)
    assert (one, two) == ({"frozen": 0, "trained": 0.5}, {"frozen": 1, "trained": 0.5})

    model = network()
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(1, 2)
    ffn.freeze(model, "net.layer1")
    before = state_of(model)
    load_buffers(model, gather_buffers(model) * 3, CPU)
    after = model.state_dict()
    statistics = [key for key in before if "running" in key]
    assert all(torch.equal(before[k], after[k]) for k in statistics if k.startswith("net.layer1."))
    assert not all(torch.equal(before[k], after[k]) for k in statistics)
