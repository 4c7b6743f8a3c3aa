"""Weight alteration against torch's own depthwise convolution, and the switch between copies."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ffn.core import PrivateModules, WeightAlteration


def test_alteration_is_a_depthwise_convolution_plus_identity() -> None:
    x, module = torch.randn(4, 7, 5, 6, dtype=torch.float64), WeightAlteration(7).double()
    nn.init.normal_(module.weight)

    expected = x + F.conv2d(x, module.weight.view(7, 1, 1, 1), groups=7)

    torch.testing.assert_close(module(x), expected, rtol=1e-14, atol=1e-14)  # sums near 0
    tokens, module = torch.randn(2, 5, 7), WeightAlteration(7, channel_dim=-1)
    torch.testing.assert_close(module(tokens), tokens * (1 + module.weight))


def test_alteration_at_zero_returns_every_bit() -> None:
    module = WeightAlteration(6)
    nn.init.zeros_(module.weight)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        x = (100 * torch.randn(2, 6, 9, 9)).to(dtype)

        assert module(x).dtype == dtype
        assert torch.equal(module(x), x)


@torch.no_grad()
def test_alteration_in_bfloat16_is_the_product_rounded_once() -> None:
    """bfloat16 has 8 significant bits: 1 + 3e-3 is 1, and the alteration would be lost."""
    x, module = torch.randn(16, 8, 16, 16).bfloat16(), WeightAlteration(8)
    for alteration in (1e-3, 3e-3, -3e-3, 1e-2, 0.3):
        nn.init.constant_(module.weight, alteration)
        stored = module.weight.bfloat16().double().view(1, -1, 1, 1)

        assert torch.equal(module(x), (x.double() * (1 + stored)).bfloat16())


def test_alteration_starts_as_in_the_paper() -> None:
    torch.manual_seed(0)
    weight = WeightAlteration(20_000).weight.detach()

    assert weight.shape == (20_000,)
    assert abs(float(weight.mean())) < 3e-5
    assert 0.98e-3 < float(weight.std()) < 1.02e-3


def test_private_modules_run_the_active_copy_and_have_its_attributes() -> None:
    norms = {count: nn.LayerNorm(3, eps=1 / count) for count in (2, 8)}
    modules, x = PrivateModules(norms).eval(), torch.randn(4, 3)

    assert torch.equal(modules(x), norms[8](x))  # the largest at first
    assert (modules.eps, modules.normalized_shape) == (1 / 8, (3,))
    assert modules.weight is norms[8].weight
    modules.selected.count = 2
    assert torch.equal(modules(x), norms[2](x))
    assert modules.eps == 1 / 2
    assert not hasattr(modules, "running_mean")
    with pytest.raises(AttributeError, match="LayerNorm"):
        modules.running_mean  # noqa: B018
    assert copy.deepcopy(modules).eps == 1 / 2
