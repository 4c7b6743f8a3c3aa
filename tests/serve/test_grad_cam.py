"""Grad-CAM: maps known in closed form, layers that are found, and another library's values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ffn.backbones import build
from ffn.layers import PerFrame
from ffn.serve.grad_cam import Place, combine, grad_cam, last_maps, named_map


class ByHand(nn.Module):
    """One convolution, the mean over its positions, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(3, 5, 3, (1, 2, 2), padding=1)
        self.head = nn.Linear(5, 4)

    def forward(self, clip: Tensor) -> Tensor:
        return self.head(self.conv(clip).mean((2, 3, 4)))


class TwoPathways(nn.Module):
    """Half of the frames and all frames, each as in `ByHand`."""

    def __init__(self) -> None:
        super().__init__()
        self.slow, self.fast = nn.Conv3d(3, 5, 1), nn.Conv3d(3, 2, 1)
        self.head = nn.Linear(7, 4)

    def forward(self, clip: Tensor) -> Tensor:
        slow, fast = self.slow(clip[:, :, ::2]), self.fast(clip)
        return self.head(torch.cat([x.mean((2, 3, 4)) for x in (slow, fast)], 1))


def frozen(network: nn.Module) -> nn.Module:
    return network.eval().requires_grad_(False)


@pytest.fixture
def clip() -> Tensor:
    return torch.randn(1, 3, 6, 16, 16, generator=torch.Generator().manual_seed(0))


def test_the_map_of_a_network_by_hand(clip) -> None:
    torch.manual_seed(0)
    network = frozen(ByHand())

    places = last_maps(network, clip)
    (found,), logits = grad_cam(network, clip, places, 2)

    assert places == (Place("conv"),)
    features = F.conv3d(clip, network.conv.weight, network.conv.bias, (1, 2, 2), 1)[0]
    expected = sum(network.head.weight[2, k] * features[k] for k in range(5))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(logits, network(clip)[0])

    values = combine([found], clip.shape[2:])
    assert values.shape == (6, 16, 16)
    whole = F.interpolate(expected[None, None], size=(6, 16, 16), mode="trilinear")[0, 0]
    torch.testing.assert_close(values, whole.clamp(min=0) / whole.max())


def test_without_evidence_the_map_is_zero(clip) -> None:
    values = combine([-torch.rand(2, 3, 3)], (4, 6, 6))
    assert values.shape == (4, 6, 6)
    assert not values.any()


def test_two_pathways_add_up_per_pixel_of_the_clip(clip) -> None:
    """A pathway with half of the frames counts as much as its share of the logit."""
    torch.manual_seed(0)
    network = frozen(TwoPathways())
    places = last_maps(network, clip)
    assert {place.name for place in places} == {"slow", "fast"}

    maps, logits = grad_cam(network, clip, places, 1)

    shares = {place.name: x for place, x in zip(places, maps, strict=True)}
    assert {name: tuple(x.shape) for name, x in shares.items()} == {
        "slow": (3, 16, 16),
        "fast": (6, 16, 16),
    }
    total = shares["slow"].mean() + shares["fast"].mean()
    torch.testing.assert_close(total, logits[1] - network.head.bias[1])


FAMILIES = {
    "tsm_tiny": {"net.layer4"},
    "tea_tiny": {"net.layer4"},
    "slowfast_tiny": {"slow.stages.3", "fast.stages.3"},
    "uniformer_tiny": {"norm"},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_last_maps_of_each_family_explain_its_logits(name) -> None:
    """The classifiers are linear after a mean: the maps' means are the logit without its bias."""
    torch.manual_seed(0)
    network = frozen(build(name, num_classes=7))
    clip = torch.randn(1, 3, 5, 64, 64)

    places = last_maps(network, clip)
    maps, logits = grad_cam(network, clip, places, 3)

    assert {place.name for place in places} == FAMILIES[name]
    classifier = network.get_classifier()
    torch.testing.assert_close(logits, network(clip)[0])
    total = sum(x.mean() for x in maps)
    torch.testing.assert_close(total, logits[3] - classifier.bias[3], atol=1e-5, rtol=1e-4)


def test_tokens_of_frames_with_one_position() -> None:
    """The last map of this crop has 1 x 1 positions, so that tokens stand for times."""
    torch.manual_seed(0)
    network = frozen(build("uniformer_tiny", num_classes=7))
    clip = torch.randn(1, 3, 6, 24, 24)

    (place,) = last_maps(network, clip)
    ((found,), _) = grad_cam(network, clip, [place], 3)

    assert found.shape == (3, 3, 3)


@pytest.mark.parametrize("layer", ["fast.stages.1", "slow.stages.2"])
def test_maps_of_named_layers_are_those_of_captum(layer) -> None:
    captum = pytest.importorskip("captum.attr")
    torch.manual_seed(0)
    network = frozen(build("slowfast_tiny", num_classes=4))
    clip = torch.randn(1, 3, 6, 32, 32)

    (found,), _ = grad_cam(network, clip, named_map(network, clip, layer), 1)

    original = captum.LayerGradCam(network, network.get_submodule(layer))
    (expected,) = original.attribute(clip.clone().requires_grad_(), target=1).detach()[0]
    torch.testing.assert_close(found, expected * expected.numel(), atol=1e-5, rtol=1e-4)


class Tokens(nn.Module):
    """A transformer: a convolution, and tokens of its positions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv3d(3, 8, (1, 4, 4), (1, 4, 4))
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, clip: Tensor) -> Tensor:
        x = self.stem(clip).flatten(2).transpose(1, 2)
        return self.head(self.encoder(x).mean(1))


class Loop(nn.Module):
    """A convolution that runs once for each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 5, 3), nn.Linear(5, 4)

    def forward(self, clip: Tensor) -> Tensor:
        return self.head(sum(self.conv(image).mean((2, 3)) for image in clip.unbind(2)))


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 4)

    def forward(self, clip: Tensor) -> Tensor:
        return self.head(clip.mean((2, 3, 4)))


def test_networks_without_a_known_map(clip) -> None:
    for network in (Tokens, Loop, Flat):
        with pytest.raises(ValueError, match=r"layer|tokens"):
            last_maps(frozen(network()), clip)


def test_foreign_image_networks_with_in_place_layers() -> None:
    body = nn.Sequential(nn.Conv2d(3, 6, 3, 2), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
    network = frozen(PerFrame(nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten())))
    clip = torch.randn(1, 3, 4, 20, 20)
    places = last_maps(network, clip)
    (found,), logits = grad_cam(network, clip, places, 5)
    assert places == (Place("net.2"),)
    torch.testing.assert_close(found.mean(), logits[5])
    # Its second layer has an output that the third changes in place.
    (found,), again = grad_cam(network, clip, named_map(network, clip, "net.1"), 5)
    torch.testing.assert_close(again, logits)


def test_wrong_layers(clip) -> None:
    network = frozen(build("tsm_tiny", num_classes=4))
    network.net.idle = nn.Identity()
    network.net.act = network.net.layer3[0].act1 = network.net.layer4[0].act1 = nn.ReLU()
    for layer in ("net.layer9", "net.fc", "net.idle", "net.act"):
        with pytest.raises(ValueError, match=layer):
            grad_cam(network, clip, named_map(network, clip, layer))
