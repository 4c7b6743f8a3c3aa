"""Counts between two trained ones, with interpolated private modules."""

from __future__ import annotations

import pytest
import torch
from core_models import TINY, Case, every_case, private_of
from torch import Tensor, nn

from ffn.core import PrivateModules, WeightAlteration, convert, extract

COUNTS = (2, 4, 8)


def between(share: float, small: Tensor, large: Tensor) -> Tensor:
    return (1 - share) * small + share * large


def filled(module: nn.Module, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for value in module.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
    return module


def test_norms_and_alterations_by_hand() -> None:
    norms = {n: filled(nn.BatchNorm2d(3), n) for n in COUNTS}
    modules, x = PrivateModules(norms).eval(), torch.randn(2, 3, 4, 4)
    for modules.selected.count, share in ((5, 0.25), (6, 0.5), (7, 0.75)):
        mean, var, weight, bias = (
            between(share, getattr(norms[4], key), getattr(norms[8], key)).view(1, 3, 1, 1)
            for key in ("running_mean", "running_var", "weight", "bias")
        )
        expected = (x - mean) / (var + norms[4].eps).sqrt() * weight + bias
        torch.testing.assert_close(modules(x), expected)

    alterations = {n: filled(WeightAlteration(3), n) for n in COUNTS}
    modules = PrivateModules(alterations).eval()
    modules.selected.count = 3
    scale = 1 + between(0.5, alterations[2].weight, alterations[4].weight)
    torch.testing.assert_close(modules(x), x * scale.view(1, 3, 1, 1))


@every_case
@torch.no_grad()
def test_a_count_between_two_is_a_network_of_its_own(case: Case) -> None:
    nearest, interpolated = case.flexible(COUNTS), case.flexible(COUNTS, interpolate=True)
    clip = case.clip(5)
    before = {key: value.clone() for key, value in interpolated.state_dict().items()}

    logits = interpolated(clip)

    assert interpolated.active == 5
    assert nearest.state_dict().keys() == before.keys()
    small = extract(interpolated, 5)
    assert not any(isinstance(module, PrivateModules) for module in small.modules())
    assert torch.equal(small(clip), logits)
    for count in (4, 8):
        assert not torch.allclose(logits, nearest(clip, active=count))
    for key, value in interpolated.state_dict().items():
        assert torch.equal(value, before[key]), key


@torch.no_grad()
def test_interpolation_is_turned_on_and_off() -> None:
    """Trained counts, and those beyond them, are not interpolated."""
    model, other = TINY.flexible(COUNTS, interpolate=True), TINY.flexible(COUNTS)
    for frames in (1, 2, 4, 9, 30):
        clip = TINY.clip(frames)
        assert torch.equal(model(clip), other(clip))
        assert model.active in COUNTS

    model, clip = TINY.flexible(COUNTS), TINY.clip(6)
    outputs = []
    for value in (False, True, False):
        model.interpolate = value
        outputs.append((model(clip), model.active, list(model.counts)))

    assert [active for _, active, _ in outputs] == [8, 6, 8]
    assert [counts for _, _, counts in outputs] == [[2, 4, 8], [2, 3, 4, 5, 6, 7, 8], [2, 4, 8]]
    assert torch.equal(outputs[0][0], outputs[2][0])
    assert not torch.allclose(outputs[0][0], outputs[1][0])


@torch.no_grad()
def test_the_owner_of_a_range_answers_and_gaps_between_ranges_are_interpolated() -> None:
    """A range was trained at all its counts; only those of no range are between sub-networks."""
    model = TINY.flexible({2: (2, 3), 4: (4, 5), 8: (8, 11)}, interpolate=True)

    assert [model.select(n) for n in range(1, 14)] == [2, 2, 2, 4, 4, 6, 7, 8, 8, 8, 8, 8, 8]
    assert model.counts == [2, 4, 6, 7, 8]
    for frames, active in ((3, 2), (6, 6)):
        clip = TINY.clip(frames)
        fixed = TINY.flexible((2, 4, 8), interpolate=True)
        assert torch.equal(model(clip), fixed(clip, active=active))


def test_networks_without_shared_weights_are_not_interpolated() -> None:
    plain = TINY.plain()
    with pytest.raises(ValueError, match="interpolate is True, but all modules are private"):
        convert(plain, COUNTS, private="all", interpolate=True)
    model = convert(plain, COUNTS, private="all")
    with pytest.raises(ValueError, match="all modules are private; use False"):
        model.interpolate = True
    assert model.interpolate is False


def test_training_uses_the_trained_counts_only() -> None:
    model, clip = TINY.flexible(COUNTS, interpolate=True).train(), TINY.clip(5)

    model(clip).sum().backward()

    assert model.active == 4
    private = private_of(model, 4).values()
    assert all(p.grad is not None for module in private for p in module.parameters())
    with pytest.raises(ValueError, match="5 frames are interpolated; train at 2, 4, 8"):
        model(clip, active=5)
