"""Names of models, and properties of every registered model."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch

from ffn import backbones
from ffn.core import FrameFlexible, WeightAlteration, convert, extract

LARGE = (  # a smaller model runs the same code
    "tsm_r101",
    "tsm_r101_alternate",
    "slowfast_r101",
    "slowfast_r50_8x8",
    "slowfast_r50_4x16_mmaction2",
    "uniformer_b",
    "vit",
    "vit_b",
    "vit_l",
    "vit_s",
    "vjepa2_l",
)
OTHERS = [name for name in backbones.model_names() if name not in LARGE]
COMPILED = ["tsm_mobilenetv2", *backbones.model_names("*_tiny")]


def build_small(name: str) -> torch.nn.Module:
    return backbones.build(name, num_classes=3, **({"width": 8} if name.endswith("_tiny") else {}))


def test_names() -> None:
    names = backbones.model_names()

    assert {"tsm_r50", "tea_r50", "slowfast_r50", "slowonly_r50", "uniformer_s"} <= set(names)
    assert names == sorted(names)
    assert backbones.model_names("tsm_r1*") == ["tsm_r101", "tsm_r101_alternate", "tsm_r18"]
    with torch.device("meta"):
        for name in LARGE:
            assert backbones.build(name, num_classes=3).get_classifier().weight.shape[0] == 3


@patch.dict(backbones.registry._models)
def test_a_class_of_another_package_is_registered() -> None:
    @backbones.register
    class Net(torch.nn.Linear):
        def __init__(self, *, num_classes: int, width: int = 2) -> None:
            super().__init__(width, num_classes)

    assert "Net" in backbones.model_names()
    assert backbones.build("Net", num_classes=3, width=5).weight.shape == (3, 5)
    with pytest.raises(ValueError, match="depth"):
        backbones.build("Net", depth=5)

    def tsm_r50() -> None: ...

    with pytest.raises(ValueError, match="tsm_r50"):
        backbones.register(tsm_r50)
    assert not backbones.is_registered("Net.resnet18")
    assert backbones.is_registered("tsm.resnet18")


def test_unknown_names_and_missing_weights() -> None:
    for name in ("tsm_r5O", "resnet50", "sea.resnet50", "tsm.resnet5O"):
        with pytest.raises(ValueError, match=name):
            backbones.build(name)
    with pytest.raises(ValueError, match="tsm_r50"):  # the closest
        backbones.build("tsm_r5O")
    for name in ("tsm_tiny", "slowfast_r50", "uniformer_s"):
        with pytest.raises(ValueError, match="image weights"):
            backbones.build(name, pretrained=True)


@pytest.mark.parametrize("name", OTHERS)
def test_clip_in_logits_out_at_any_length(name: str) -> None:
    torch.manual_seed(0)
    model = build_small(name).eval()

    with torch.no_grad():
        for frames in (1, 3):
            clip = torch.randn(2, 3, frames, 32, 32)
            logits = model(clip)
            assert logits.shape == (2, 3)
            assert torch.isfinite(logits).all()
            assert torch.equal(logits, model(clip))  # no randomness in eval


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_every_model_converts_exactly_and_keeps_its_clips_apart(name: str) -> None:
    """The rules of every converted network (tests/core), for each registered one at full width."""
    torch.manual_seed(0)
    plain = backbones.build(name, num_classes=3).eval()
    flexible = convert(plain, (4, 8), alter="all")
    for module in flexible.modules():
        if isinstance(module, WeightAlteration):
            torch.nn.init.zeros_(module.weight)
    state = {k: v.clone() for k, v in flexible.state_dict().items()}

    with torch.inference_mode():
        for frames, active in ((1, 4), (4, 4), (9, 8), (64, 8)):
            clip = torch.randn(2, 3, frames, 32, 32)
            logits = flexible(clip)
            assert flexible.active == active
            assert torch.equal(logits, plain(clip))
            assert torch.equal(logits, extract(flexible, active)(clip))
            other = torch.cat([clip[:1], clip[1:] + 1])
            torch.testing.assert_close(flexible(other)[0], logits[0], rtol=1e-4, atol=1e-5)
            assert not torch.equal(flexible(other)[1], logits[1])

    assert all(torch.equal(v, state[k]) for k, v in flexible.state_dict().items())
    if name in COMPILED:
        assert_saves_compiles_and_runs_in_bf16(flexible, name)


@torch.no_grad()
def assert_saves_compiles_and_runs_in_bf16(flexible: FrameFlexible, name: str) -> None:
    loaded = convert(backbones.build(name, num_classes=3), (4, 8), alter="all").eval()
    loaded.load_state_dict(flexible.state_dict(), strict=True)
    small = extract(flexible, 4)
    torch._dynamo.reset()
    compiled = torch.compile(small, backend="eager", fullgraph=True)

    for frames in (1, 4, 7):
        clip = torch.randn(2, 3, frames, 32, 32)
        assert torch.equal(loaded(clip), flexible(clip))
        expected = small(clip)
        torch.testing.assert_close(compiled(clip), expected, rtol=1e-6, atol=1e-6)
        if any(isinstance(module, torch.nn.Conv3d) for module in small.modules()):
            continue  # torch's 3-D convolutions in bf16 are wrong on some CPUs
        with torch.autocast("cpu", torch.bfloat16):
            rounded = small(clip).float()
        assert torch.isfinite(rounded).all()
        assert (rounded - expected).norm() < 0.1 * expected.norm()
