"""Names of models, and what every registered one promises."""

from __future__ import annotations

import pytest
import torch

from ffn import backbones


def build_small(name: str) -> torch.nn.Module:
    return backbones.build(name, num_classes=3, **({"width": 8} if name == "tsm_tiny" else {}))


def test_names() -> None:
    names = backbones.model_names()

    assert {"tsm_r18", "tsm_r50", "tsm_r101", "tsm_mobilenetv2", "tsm_tiny"} <= set(names)
    assert names == sorted(names)
    assert backbones.model_names("tsm_r*") == ["tsm_r101", "tsm_r18", "tsm_r50"]
    assert "tsm" in backbones.families()


@pytest.mark.parametrize("name", ["tsm_r5O", "resnet50", "tea.resnet50", "tsm."])
def test_unknown_name(name: str) -> None:
    with pytest.raises(ValueError, match=f'no model "{name}"; did you mean tsm_'):
        backbones.build(name)


def test_unknown_name_gives_the_closest() -> None:
    with pytest.raises(ValueError, match="did you mean tsm_r50"):
        backbones.build("tsm_r5O")


@pytest.mark.parametrize("name", backbones.model_names())
def test_clip_in_logits_out_at_any_length(name: str) -> None:
    if name == "tsm_r101":
        pytest.skip("tsm_r50 with more blocks")
    torch.manual_seed(0)
    model = build_small(name).eval()

    with torch.no_grad():
        for frames in (1, 3):
            clip = torch.randn(2, 3, frames, 32, 32)
            logits = model(clip)
            assert logits.shape == (2, 3)
            assert torch.isfinite(logits).all()
            assert torch.equal(logits, model(clip))  # no randomness in eval


@pytest.mark.parametrize("name", ["tsm_tiny", "tsm_r18", "tsm_mobilenetv2"])
def test_every_parameter_gets_a_gradient(name: str) -> None:
    torch.manual_seed(0)
    model = build_small(name).train()
    for parameter in model.parameters():  # a branch that ends in weight 0 hides what it learns
        if parameter.ndim == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)

    model(torch.randn(4, 3, 2, 64, 64)).square().sum().backward()

    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not without
