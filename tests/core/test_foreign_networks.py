"""Networks of torchvision, timm and Hugging Face, and layers with habits that ours do not have.

The tests check the table of docs/convert_your_own.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import timm
import torch
import torch.nn.functional as F
from core_models import randomize, zero_alterations
from torch import Tensor, nn
from torchvision.models import video

import ffn
from ffn.core import PrivateModules, convert, extract
from ffn.layers import PerFrame

COUNTS = (4, 16)


@dataclass(frozen=True)
class Other:
    """A network, its alterations, a clip's side in pixels, and the T that it runs at."""

    build: Callable[[], nn.Module]
    alter: list[str]
    norms: int
    sites: int
    size: int = 32
    frames: tuple[int, ...] = (1, 16)


def per_frame(name: str, **options: object) -> Callable[[], nn.Module]:
    return lambda: PerFrame(timm.create_model(name, num_classes=3, **options))


class FramesFirst(nn.Module):
    """A Hugging Face video classifier, which takes (B, T, C, H, W), with our interface."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, clip: torch.Tensor) -> torch.Tensor:
        return self.net(clip.transpose(1, 2)).logits


def hugging_face(name: str) -> Callable[[], nn.Module]:
    """A small one; skipped where the package is not installed."""

    def build() -> nn.Module:
        transformers = pytest.importorskip("transformers")
        config = getattr(transformers, f"{name}Config")(
            image_size=32,
            num_frames=16,
            num_hidden_layers=2,
            hidden_size=48,
            num_attention_heads=4,
            intermediate_size=96,
            num_labels=3,
        )
        return FramesFirst(getattr(transformers, f"{name}ForVideoClassification")(config))

    return build


OTHERS = {
    "r3d_18": Other(lambda: video.r3d_18(num_classes=3), ["layer*.conv1.0"], 20, 8),
    "r2plus1d_18": Other(lambda: video.r2plus1d_18(num_classes=3), ["layer*.conv1.0.0"], 37, 8),
    "swin3d_t": Other(lambda: video.swin3d_t(num_classes=3), ["features.*.mlp.0"], 29, 12, size=64),
    "mvit_v2_s": Other(
        lambda: video.mvit_v2_s(num_classes=3), ["blocks.*.attn.qkv"], 81, 16, 224, frames=(16,)
    ),
    "convnext_atto": Other(per_frame("convnext_atto"), ["net.stages.*.conv_dw"], 17, 12),
    "VideoMAE": Other(hugging_face("VideoMAE"), ["net.*.attention.query"], 5, 2, frames=(16,)),
    "TimeSformer": Other(
        hugging_face("Timesformer"), ["net.*.temporal_attention.*.qkv"], 7, 2, frames=(16,)
    ),
    "vit_tiny": Other(
        per_frame("vit_tiny_patch16_224", img_size=32), ["net.blocks.*.attn.qkv"], 25, 12
    ),
}
SLOW = ("r2plus1d_18", "swin3d_t", "mvit_v2_s")
every_other = pytest.mark.parametrize(
    "other",
    [
        pytest.param(other, id=name, marks=pytest.mark.slow if name in SLOW else ())
        for name, other in OTHERS.items()
    ],
)


@every_other
def test_converts_extracts_runs_and_learns(other: Other) -> None:
    """A layer that its network uses without calling it, as qkv of Swin, would have no gradient."""
    torch.manual_seed(0)
    plain = randomize(other.build()).eval()
    flexible = zero_alterations(convert(plain, COUNTS, alter=other.alter))
    assert len(flexible.report.private) == other.norms
    assert len(flexible.report.altered) == other.sites

    for frames in other.frames:
        clip = torch.randn(1, 3, frames, other.size, other.size)
        with torch.no_grad():
            expected = plain(clip)
            assert torch.equal(flexible(clip), expected)
            assert torch.equal(extract(flexible, flexible.active)(clip), expected)

    flexible(clip, active=16).square().sum().backward()

    gradients = {name: p.grad is not None for name, p in flexible.model.named_parameters()}
    own = [name for name in gradients if ".16." in name]
    assert len(own) >= 2 * other.norms + other.sites - 1
    assert all(gradients[name] for name in own)
    assert not any(gradients[name.replace(".16.", ".4.")] for name in own)


class FrameTokens(nn.Module):
    """One token per frame, through torch's own transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, clip: Tensor) -> Tensor:
        tokens = self.embed(clip.mean((3, 4)).transpose(1, 2))  # (B, T, 16)
        return self.head(self.layer(tokens).mean(1))


def test_torch_transformer_layer_reads_its_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """In eval mode without gradients, its fast path reads eps, weight and bias of the norms."""
    fast, calls = torch._transformer_encoder_layer_fwd, []
    monkeypatch.setattr(
        torch, "_transformer_encoder_layer_fwd", lambda *a: (calls.append(1), fast(*a))[1]
    )
    torch.manual_seed(0)
    with torch.no_grad():
        model = ffn.convert(FrameTokens(), (2, 4), alter="none", example=torch.randn(1, 3, 4, 8, 8))
    assert model.report.idle == ()
    for module in model.eval().modules():
        if isinstance(module, PrivateModules):
            for parameter in module.parameters():
                nn.init.normal_(parameter, 1, 0.3)
    for frames in (2, 4):
        clip = torch.randn(2, 3, frames, 8, 8)
        with torch.no_grad():
            result = model(clip)
        assert calls
        calls.clear()
        torch.testing.assert_close(result, model(clip))  # with gradients: the slow path
        assert not calls
        assert not torch.allclose(result, model(clip, active=6 - frames))


class Layers(nn.Module):
    """Layers that see the mean of each channel of a clip."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, clip: Tensor) -> Tensor:
        x = clip.mean((2, 3, 4))
        for layer in self.children():
            x = layer(input=x)
        return x


def test_layer_with_a_keyword_argument_is_altered() -> None:
    model = ffn.convert(Layers(fc=nn.Linear(3, 2)), (2, 4), private="none", alter=["fc"])
    clip, fc = torch.randn(2, 3, 4, 8, 8), model.model.fc
    nn.init.normal_(fc.alteration["4"].weight)

    expected = F.linear(clip.mean((2, 3, 4)) * (1 + fc.alteration["4"].weight), fc.weight, fc.bias)
    torch.testing.assert_close(model(clip), expected)


def test_tied_norms_stay_tied_within_a_count() -> None:
    """A norm that is tied to a shared layer is refused."""
    one, other = nn.LayerNorm(3), nn.LayerNorm(3)
    other.weight = one.weight
    model = ffn.convert(Layers(one=one, other=other), (2, 4), alter="none")

    for count in ("2", "4"):
        assert model.model.one[count].weight is model.model.other[count].weight
    assert model.model.one["2"].weight is not model.model.one["4"].weight
    small = ffn.extract(model, 2)
    assert small.one.weight is small.other.weight

    norm, scale = nn.LayerNorm(3), nn.Linear(3, 1)
    scale.bias = nn.Parameter(torch.zeros(3))
    norm.bias = scale.bias
    with pytest.raises(ValueError, match=r"norm\.bias is the same parameter as scale\.bias"):
        ffn.convert(Layers(norm=norm, scale=scale), (2, 4), alter="none")


class Hidden(nn.Module):
    """Calls one norm as an attribute, one through a list, and one layer never."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.hidden = nn.BatchNorm3d(3), nn.BatchNorm3d(3)
        self.layers = [self.hidden]  # a Python list: conversion cannot replace it
        self.qkv = nn.Linear(3, 9)

    def forward(self, clip: Tensor) -> Tensor:
        return self.layers[0](self.seen(clip)).mean((2, 3, 4)) @ self.qkv.weight.T


def test_example_finds_what_does_not_run() -> None:
    plain, clip = Hidden(), torch.randn(2, 3, 4, 8, 8)
    with pytest.warns(
        UserWarning, match=r"2 private .* would not learn unless .*: hidden, qkv\.alt"
    ):
        model = ffn.convert(plain, (2, 4), alter=["qkv"], example=clip)

    assert model.report.idle == ("hidden", "qkv.alteration")
    assert model.training
    assert all(module.training for module in model.modules())
    for norm in model.model.seen.values():  # the example did not change statistics
        assert int(norm.num_batches_tracked) == 0


@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_network_that_keeps_computed_tensors(norm: Callable) -> None:
    """As these norms do, and a network that stores its features."""

    class Keeping(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            self.kept = [super().forward(x)]
            return self.kept[0].mean((2, 3, 4))

    network, clip = Keeping(norm(nn.Conv3d(3, 4, 1)), nn.BatchNorm3d(4)), torch.randn(2, 3, 4, 5, 5)
    network.train()(clip)
    flexible = convert(network.eval(), (2, 4), alter="none")

    torch.testing.assert_close(flexible(clip), network(clip), rtol=0, atol=0)
    torch.testing.assert_close(extract(flexible, 4)(clip), flexible(clip), rtol=0, atol=0)
    assert flexible.model[0] is not network[0]
