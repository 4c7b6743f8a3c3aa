"""The attentive probe on every family of backbones, and TSN."""

from __future__ import annotations

import pytest
import torch

import ffn

NAMES = (
    "tsm_tiny",
    "tea_tiny",
    "slowfast_tiny",
    "uniformer_tiny",
    "vit_tiny",
    "tsn.vit_tiny_patch16_224",  # tokens, the first without a place
    "tsn.convnext_atto",
)


def build(name: str, grid: int = 2) -> torch.nn.Module:
    torch.manual_seed(0)
    head = {"name": "probe", "width": 64, "depth": 1, "grid": grid}
    network = ffn.create_model(name, num_classes=5, head=head).eval()
    for layer in (m for m in network.head.modules() if isinstance(m, torch.nn.Linear)):
        layer.weight.data *= 5  # attention that is not uniform
    return network


def clip_of(frames: int, size: int = 32) -> torch.Tensor:
    return torch.randn(2, 3, frames, size, size, generator=torch.Generator().manual_seed(frames))


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_features_stand_for_clips(name: str) -> None:
    """At any length, three frames too, which have as many channels as a clip has frames."""
    flexible = ffn.convert(build(name), (2, 4)).eval()
    for frames in (1, 2, 3, 5):
        clip = clip_of(frames)
        logits, features = flexible(clip), flexible.forward_features(clip)
        assert features.shape == (2, flexible.model.num_features, frames, 2, 2)
        assert torch.equal(flexible(features), logits)
        if frames > 2:  # positions
            assert not torch.allclose(flexible(features.flip(2)), logits, rtol=1e-3)


@torch.no_grad()
def test_features_by_hand() -> None:
    image = build("tsn.vit_tiny_patch16_224", grid=1)
    clip = clip_of(3)
    tokens = image.backbone.net.forward_features(clip[:, :, 1])  # a class token and four places
    torch.testing.assert_close(image.forward_features(clip)[:, :, 1, 0, 0], tokens[:, 1:].mean(1))

    video = build("vit_tiny")
    clip = clip_of(5)
    maps = video.backbone.forward_features(clip)  # (2, C, 3, 4, 4)
    first = maps[:, :, :, :2, 2:].mean((3, 4))  # up, right
    features = video.forward_features(clip)[..., 0, 1]
    torch.testing.assert_close(features, first[:, :, [0, 0, 1, 1, 2]])


@torch.no_grad()
def test_tsn_averages_the_logits_of_frames() -> None:
    net = ffn.create_model("tsn.resnet18", num_classes=5).eval()
    clip = clip_of(3)
    frames = torch.stack([net.net(clip[:, :, t]) for t in range(3)])
    torch.testing.assert_close(net(clip), frames.mean(0))
