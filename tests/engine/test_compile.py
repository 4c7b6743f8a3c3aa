"""Compiled networks: the same training step as eager networks, one graph per frame count."""

from __future__ import annotations

import copy

import pytest
import torch
from compiler_toys import Small
from engine_toys import assert_same_gradients, backward, batch, in_float64
from timm.layers import ConvMlp
from torch import nn

from ffn import backbones
from ffn.core import convert, extract
from ffn.engine.activation_checkpointing import checkpoint_blocks
from ffn.engine.build_network import compile_network
from ffn.engine.tasks import FlexibleTask

pytestmark = pytest.mark.usefixtures("fresh_compiler")
COUNTS = (2, 4)


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile with another backend, which is faster and needs no C++ compiler."""
    plain = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda self, **kw: plain(self, backend=request.param, **kw)
    )


# Forward and backward graphs, with recomputation in the backward, as for the C++ backend.
differentiated = pytest.mark.parametrize(
    "backend", ["aot_eager_decomp_partition"], indirect=True, ids=["aot"]
)


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@differentiated
@pytest.mark.slow
@pytest.mark.parametrize("name", ["tsm_tiny", "slowfast_tiny", "uniformer_tiny", "vit_tiny"])
def test_steps_of_every_family(backend: None, name: str) -> None:
    """In float64; the second step uses the graphs of the first."""
    torch.manual_seed(0)
    views = "sequential" if name == "tsm_tiny" else "together"
    model = convert(backbones.build(name, num_classes=3, width=8), COUNTS)
    for parameter in model.parameters():  # sub-networks differ; no value is near zero
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, 0.3, 1.2)
    task, data = FlexibleTask(model.double(), COUNTS).train(), in_float64(batch(COUNTS, side=32))
    other = copy.deepcopy(task)
    keys = list(other.model.state_dict())
    if name != "slowfast_tiny":
        checkpoint_blocks(other.model)
    compile_network(other.model, len(COUNTS))

    for _ in range(2):
        for one in (task, other):
            one.zero_grad()
        torch.testing.assert_close(
            backward(task, data, views), backward(other, data, views), rtol=1e-10, atol=1e-10
        )

    assert_same_gradients(task, other)
    for one, two in zip(task.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-12)  # statistics moved once a step
    assert graphs() == len(COUNTS)
    assert list(other.model.state_dict()) == keys


@differentiated
def test_checkpointed_blocks_in_a_graph_reuse_the_dropout_masks(backend: None) -> None:
    """For a linear map f, <x, grad f(x)> = f(x), if the backward uses the forward's masks."""
    torch.manual_seed(0)

    def block() -> nn.Module:
        return ConvMlp(64, bias=False, act_layer=nn.Identity, drop=0.5)

    model = nn.Sequential(block(), block()).double()
    assert checkpoint_blocks(model) == 2
    compile_network(model, 1)

    values = []
    for _ in range(2):
        x = torch.ones(8, 64, 1, 1, dtype=torch.float64, requires_grad=True)
        values.append(model(x).sum())
        values[-1].backward()
        assert (x * x.grad).sum().item() == pytest.approx(values[-1].item(), rel=1e-10)
    assert values[0] != values[1]


@pytest.mark.parametrize("backend", ["eager"], indirect=True)
def test_one_graph_per_count_and_none_for_validation(backend: None) -> None:
    """Ten counts, more than torch's default limit of eight graphs."""
    counts = tuple(range(1, 11))
    model = convert(Small(), counts, alter=["head"]).train()
    compile_network(model, len(counts))

    for _ in range(2):
        for count in counts:
            model(torch.randn(2, 3, count, 4, 4)).sum().backward()
        with torch.compiler.set_stance("force_eager"), torch.no_grad():
            for length in range(1, 30):
                model.eval()(torch.randn(1, 3, length, 4, 4))
        model.train()

    assert graphs() == len(counts)
    clip = torch.randn(1, 3, 4, 4, 4)  # copies and extracted networks are not compiled
    torch.testing.assert_close(copy.deepcopy(model).eval()(clip), extract(model.eval(), 4)(clip))
    assert graphs() == len(counts)
