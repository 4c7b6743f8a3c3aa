"""Networks of torchvision, timm and Hugging Face, converted: private norms, alterations, T.

The tests check the table of docs/convert_your_own.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import timm
import torch
from core_models import randomize, zero_alterations
from torch import nn
from torchvision.models import video

from ffn.core import convert, extract
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
    frames: tuple[int, ...] = (1, 5, 16)


def per_frame(name: str, **options: object) -> Callable[[], nn.Module]:
    return lambda: PerFrame(timm.create_model(name, num_classes=3, **options))


class FramesFirst(nn.Module):
    """A Hugging Face video classifier, which takes (B, T, C, H, W), with our interface."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, clip: torch.Tensor) -> torch.Tensor:
        return self.net(clip.transpose(1, 2)).logits


def hugging_face(name: str, **options: int) -> Callable[[], nn.Module]:
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
            **options,
        )
        return FramesFirst(getattr(transformers, f"{name}ForVideoClassification")(config))

    return build


OTHERS = {
    "r3d_18": Other(lambda: video.r3d_18(num_classes=3), ["layer*.conv1.0"], 20, 8),
    "r2plus1d_18": Other(lambda: video.r2plus1d_18(num_classes=3), ["layer*.conv1.0.0"], 37, 8),
    "swin3d_t": Other(lambda: video.swin3d_t(num_classes=3), ["features.*.mlp.0"], 29, 12, size=64),
    "mvit_v2_s": Other(
        lambda: video.mvit_v2_s(num_classes=3),
        ["blocks.*.attn.qkv"],
        81,
        16,
        size=224,
        frames=(16,),
    ),
    "convnext_atto": Other(per_frame("convnext_atto"), ["net.stages.*.conv_dw"], 17, 12),
    "VideoMAE": Other(hugging_face("VideoMAE"), ["net.*.attention.query"], 5, 2, frames=(16,)),
    "TimeSformer": Other(
        hugging_face("Timesformer"),
        ["net.*.layer.*.temporal_attention.attention.qkv"],
        7,
        2,
        frames=(16,),
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


def clip(other: Other, frames: int, batch: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(frames)
    return torch.randn(batch, 3, frames, other.size, other.size, generator=generator)


@every_other
@torch.no_grad()
def test_converts_extracts_and_runs(other: Other) -> None:
    torch.manual_seed(0)
    plain = randomize(other.build()).eval()
    flexible = zero_alterations(convert(plain, COUNTS, alter=other.alter))
    assert len(flexible.report.private) == other.norms
    assert len(flexible.report.altered) == other.sites

    for frames in other.frames:
        expected = plain(clip(other, frames))
        assert torch.equal(flexible(clip(other, frames)), expected)
        small = extract(flexible, flexible.active)
        assert torch.equal(small(clip(other, frames)), expected)


@every_other
def test_alterations_and_norms_learn(other: Other) -> None:
    """A layer that its network uses without calling it (torchvision's Swin: qkv) would not."""
    torch.manual_seed(0)
    flexible = randomize(convert(other.build(), COUNTS, alter=other.alter)).eval()
    frames = other.frames[-1]

    flexible(clip(other, frames), active=16).square().sum().backward()

    gradients = {name: p.grad is not None for name, p in flexible.model.named_parameters()}
    own, others = ([name for name in gradients if f".{n}." in name] for n in (16, 4))
    assert len(own) >= 2 * other.norms + other.sites - 1
    assert [name for name in own if not gradients[name]] == []
    theirs = [name.replace(".16.", ".4.") for name in own]
    assert set(theirs) <= set(others)
    assert not any(gradients[name] for name in theirs)


@torch.no_grad()
def test_a_fixed_position_embedding_fixes_the_length() -> None:
    class Fixed(nn.Module):
        """Adds a learned position to each of 16 frames, as MViT and VideoMAE do."""

        def __init__(self) -> None:
            super().__init__()
            self.position = nn.Parameter(torch.zeros(1, 3, 16, 1, 1))
            self.norm, self.fc = nn.BatchNorm3d(3), nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.norm(x + self.position).mean((2, 3, 4)))

    flexible = convert(Fixed(), COUNTS, alter=["fc"])
    assert flexible(torch.randn(1, 3, 16, 4, 4)).shape == (1, 2)
    with pytest.raises(RuntimeError, match="size"):  # the network's own error
        flexible(torch.randn(1, 3, 8, 4, 4))
