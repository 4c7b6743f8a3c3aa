"""State dicts: keys without a wrapper prefix, plain entries in every copy, strict loading."""

from __future__ import annotations

import pytest
import torch
from core_models import TINY, Case, every_case, randomize
from torch import nn

from ffn.core import FrameFlexible, WeightAlteration, convert, extract

COUNTS = (2, 4, 8)


def fresh(case: Case = TINY) -> FrameFlexible:
    torch.manual_seed(7)
    return convert(case.build(), COUNTS, **case.options).eval()


@every_case
@torch.no_grad()
def test_plain_weights_go_into_every_copy(case: Case) -> None:
    plain = randomize(case.plain())
    flexible = fresh(case)
    alterations = [m.weight.clone() for m in flexible.modules() if isinstance(m, WeightAlteration)]
    state = plain.state_dict()
    keys = list(state)

    flexible.load_state_dict(state, strict=True)

    assert list(state) == keys  # the caller's dict stays
    kept = [m.weight for m in flexible.modules() if isinstance(m, WeightAlteration)]
    assert all(torch.equal(a, b) for a, b in zip(alterations, kept, strict=True))
    for module in flexible.modules():
        if isinstance(module, WeightAlteration):
            nn.init.zeros_(module.weight)
    for count in COUNTS:
        assert torch.equal(flexible(case.clip(count)), plain(case.clip(count)))


def test_weights_that_lack_something() -> None:
    half = fresh().state_dict()
    for key in [key for key in half if key.startswith("net.bn1.")]:
        value = half.pop(key)
        half[key.replace(".2.", ".")] = value  # one norm as a plain network has it
    mixed = TINY.build().state_dict()  # plain norms, flexible alterations
    mixed |= {key: value for key, value in fresh().state_dict().items() if ".site." in key}
    lacking = TINY.build().state_dict()
    del lacking["net.bn1.running_var"]

    counter = fresh().state_dict()
    del counter["net.bn1.4.num_batches_tracked"]

    other = convert(TINY.build(), (2, 4, 16)).state_dict()
    for state in (half, mixed, lacking, counter, other):
        with pytest.raises(RuntimeError, match="Missing key"):
            fresh().load_state_dict(state, strict=True)
    missing = fresh().load_state_dict(counter, strict=False).missing_keys
    assert missing == ["model.net.bn1.4.num_batches_tracked"]


def test_inside_another_module() -> None:
    outer = nn.ModuleDict({"task": fresh()})
    state = nn.ModuleDict({"task": TINY.flexible()}).state_dict()

    assert "task.net.layer1.0.bn1.4.running_mean" in state
    assert all(key.startswith("task.net.") for key in state)
    outer.load_state_dict(state, strict=True)
    assert all(torch.equal(outer.state_dict()[key], value) for key, value in state.items())


def test_an_inner_network_named_model() -> None:
    """With a layer of the name that the outer network has, too."""
    net = nn.ModuleDict({"fc": nn.Linear(4, 4), "model": nn.Module()})
    net["model"].fc, net["model"].norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
    flexible, loaded = (convert(net, COUNTS, alter="none") for _ in range(2))
    state = {key: torch.rand(value.shape) for key, value in flexible.state_dict().items()}
    loaded.load_state_dict(state)
    found = loaded.state_dict()
    assert all(torch.equal(found[k], v) for k, v in state.items() if "tracked" not in k)


def test_assigned_plain_weights_are_not_shared() -> None:
    plain, flexible = TINY.build(), fresh()
    flexible.load_state_dict(plain.state_dict(), assign=True)

    tensors = [*flexible.parameters(), *flexible.named_buffers(remove_duplicate=False)]
    storages = [(t[1] if isinstance(t, tuple) else t).data_ptr() for t in tensors]
    assert len(set(storages)) == len(storages)
    means = {n: b for n, b in flexible.named_buffers() if n.endswith("4.running_mean")}
    before = {name: mean.clone() for name, mean in means.items()}
    flexible.train()(torch.randn(2, 3, 2, 16, 16))
    assert means
    assert all(torch.equal(mean, before[name]) for name, mean in means.items())


def test_statistics_outside_the_state_dict_are_extracted() -> None:
    class Centered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.calls = nn.Parameter(torch.ones(3)), 0
            self.register_buffer("mean", torch.zeros(3), persistent=False)

        def forward(self, x):
            if self.training:
                self.calls += 1
                self.mean.lerp_(x.detach().mean((0, 2, 3, 4)), 0.1)
            return (x - self.mean.view(-1, 1, 1, 1)) * self.scale.view(-1, 1, 1, 1) * self.calls

    net = nn.Sequential(Centered(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, 2))
    own = {"private": lambda _, module: isinstance(module, Centered), "alter": "none"}
    flexible = convert(net, (2, 4), **own).train()
    for count in (2, 4, 4):
        flexible(torch.randn(2, 3, count, 4, 4) + count)
    clip = torch.randn(1, 3, 4, 4, 4)
    for count in (2, 4):
        expected = flexible.eval()(clip, active=count)
        assert torch.equal(extract(flexible, count)(clip), expected)
