"""The head over time on every family of backbones, and LipNet."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ffn
from ffn import backbones
from ffn.zoo import load_start_weights, save_weights

NAMES = ("tsm_tiny", "tea_tiny", "slowfast_tiny", "uniformer_tiny", "vit_tiny", "lipnet_tiny")
HALVED = ("uniformer_tiny", "vit_tiny")


def build(name: str, **options: object) -> backbones.SequenceNetwork:
    torch.manual_seed(0)
    head = {"name": "sequence", "hidden": 8, **options}
    return ffn.create_model(name, num_classes=5, head=head).eval()


def clip_of(frames: int) -> torch.Tensor:
    return torch.randn(2, 3, frames, 32, 32, generator=torch.Generator().manual_seed(frames))


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_features_of_frames_average_to_those_of_the_classifier(name: str) -> None:
    plain = backbones.build(name, num_classes=5).eval()
    plain.fc_norm = torch.nn.Identity()  # a ViT's is not linear
    for frames in (1, 4, 5):
        features = plain.forward_features(clip_of(frames))
        found = plain.frame_features(features)
        steps = (frames + 1) // 2 if name in HALVED else frames
        assert found.shape == (2, steps, plain.head_hidden_size)
        if name == "slowfast_tiny":  # the slow pathway is interpolated; the fast one is not
            slow, fast = features
            torch.testing.assert_close(found[..., -fast.shape[1] :].mean(1), fast.mean((2, 3, 4)))
            torch.testing.assert_close(found[:, 0, : slow.shape[1]], slow[:, :, 0].mean((2, 3)))
        else:
            averaged = plain.forward_head(features, pre_logits=True)
            torch.testing.assert_close(found.mean(1), averaged)


@pytest.mark.parametrize("layers", ["gru", "conv"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_of_every_step(name: str, layers: str) -> None:
    """At any length, with clips apart, and a gradient for every parameter of the sub-network."""
    flexible = ffn.convert(build(name, layers=layers, upsample=3), (2, 4)).eval()
    with torch.no_grad():
        for frames in (1, 2, 5):
            clip = clip_of(frames)
            logits = flexible(clip)
            steps = 3 * ((frames + 1) // 2 if name in HALVED else frames)
            assert logits.shape == (2, steps, 6)
            other = torch.cat([clip[:1], clip[1:] + 1])
            torch.testing.assert_close(flexible(other)[0], logits[0], rtol=1e-4, atol=1e-5)
            features = flexible.forward_features(clip)
            assert torch.equal(flexible.forward_head(features), logits)
    network = ffn.extract(flexible, 4)
    network.train()(clip_of(4)).square().sum().backward()
    assert not [n for n, p in network.named_parameters() if p.grad is None]


@torch.no_grad()
def test_lipnet_has_the_layers_of_its_table() -> None:
    """Assael et al. 2016: shapes for 75 frames of 50 x 100 px, and weights and biases by hand."""
    net = ffn.create_model("lipnet", num_classes=27, head={"name": "sequence"}).eval()
    shapes = []
    for block in net.backbone.blocks:
        block[1].register_forward_hook(
            lambda _, args, out: shapes.extend([args[0].shape, out.shape])
        )
    features = net.forward_features(torch.zeros(1, 3, 75, 50, 100))
    assert [tuple(shape[1:]) for shape in (*shapes, features.shape)] == [
        (3, 75, 50, 100), (32, 75, 25, 50), (32, 75, 12, 25), (64, 75, 12, 25), (64, 75, 6, 12),
        (96, 75, 6, 12), (96, 75, 3, 6),
    ]  # fmt: skip
    frame = net.backbone.frame_features(features)
    assert torch.equal(frame[0, 7], features[0, :, 7].flatten())  # no pixel is averaged

    convolutions = 32 * (3 * 75 + 1) + 64 * (32 * 75 + 1) + 96 * (64 * 27 + 1)
    gates = [2 * 3 * 256 * (inputs + 256 + 2) for inputs in (96 * 3 * 6, 2 * 256)]
    norms = 2 * (32 + 64 + 96 + 96 * 3 * 6)  # not in the paper
    total = convolutions + sum(gates) + 28 * (2 * 256 + 1) + norms
    assert sum(p.numel() for p in net.parameters()) == total
    assert net.forward_head(features).shape == (1, 75, 28)


@pytest.mark.parametrize("trained", [None, (4, 8)])
def test_a_backbone_starts_from_a_classifier(trained: tuple | None, tmp_path: Path) -> None:
    plain = backbones.build("tsm_tiny", num_classes=7)
    path = tmp_path / "start.safetensors"
    about = {"model": "tsm_tiny", "num_classes": 7, "preprocessing": {"crop": 24}}
    about |= {"trained_frames": trained and [*trained]}
    save_weights(ffn.convert(plain, trained) if trained else plain, path, about)
    model = ffn.convert(build("tsm_tiny"), (2, 6))

    match, _ = load_start_weights(model, path)

    assert match.classes is not None  # the head is new
    state, start = model.state_dict(), plain.state_dict()
    assert torch.equal(state["backbone.net.conv1.0.weight"], start["net.conv1.0.weight"])
    assert torch.equal(state["backbone.net.bn1.6.weight"], start["net.bn1.weight"])
    assert not [key for key in state if "net.fc" in key]
