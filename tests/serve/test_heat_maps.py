"""Heat maps: maps known in closed form, another library's values, and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from serve_files import CLASSES
from torch import Tensor, nn
from torch.nn import functional as F

import ffn
from ffn.backbones import build
from ffn.layers import PerFrame
from ffn.serve.heat_maps import COLOR, OPACITY, combine, grad_cam


class ByHand(nn.Module):
    """One convolution, the mean over its positions, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(3, 5, 3, (1, 2, 2), padding=1)
        self.head = nn.Linear(5, 4)

    def forward_features(self, clip: Tensor) -> Tensor:
        return self.conv(clip)

    def forward_head(self, x: Tensor) -> Tensor:
        return self.head(x.mean((2, 3, 4)))

    def forward(self, clip: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(clip))


def frozen(network: nn.Module) -> nn.Module:
    return network.eval().requires_grad_(False)


@pytest.fixture
def clip() -> Tensor:
    return torch.randn(1, 3, 6, 16, 16, generator=torch.Generator().manual_seed(0))


def test_the_map_of_a_network_by_hand(clip) -> None:
    torch.manual_seed(0)
    network = frozen(ByHand())
    features = F.conv3d(clip, network.conv.weight, network.conv.bias, (1, 2, 2), 1)[0]
    expected = sum(network.head.weight[2, k] * features[k] for k in range(5))

    for layer in (None, "conv"):
        (found,), logits = grad_cam(network, clip, 2, layer)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(logits, network(clip)[0])

    values = combine([found], clip.shape[2:])
    whole = F.interpolate(expected[None, None], size=(6, 16, 16), mode="trilinear")[0, 0]
    torch.testing.assert_close(values, whole.clamp(min=0) / whole.max())
    assert not combine([-torch.rand(2, 3, 3)], (4, 6, 6)).any()  # no evidence


@pytest.mark.parametrize("name", ["tsm_tiny", "tea_tiny", "slowfast_tiny", "uniformer_tiny"])
def test_the_last_maps_of_each_family_explain_its_logits(name) -> None:
    """The classifiers are linear after a mean: the maps' means are the logit without its bias."""
    torch.manual_seed(0)
    network = frozen(build(name, num_classes=7))
    clip = torch.randn(1, 3, 5, 64, 64)

    maps, logits = grad_cam(network, clip, 3)

    assert len(maps) == (2 if name == "slowfast_tiny" else 1)
    torch.testing.assert_close(logits, network(clip)[0])
    total = sum(x.mean() for x in maps) + network.get_classifier().bias[3]
    torch.testing.assert_close(total, logits[3], atol=1e-5, rtol=1e-4)


def test_a_foreign_image_network_with_in_place_layers() -> None:
    body = nn.Sequential(nn.Conv2d(3, 6, 3, 2), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
    network = frozen(PerFrame(nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten())))
    clip = torch.randn(1, 3, 4, 20, 20)
    (found,), logits = grad_cam(network, clip, 5, "net.2")
    torch.testing.assert_close(found.mean(), logits[5])
    _, again = grad_cam(network, clip, 5, "net.1")  # whose output the next layer changes in place
    torch.testing.assert_close(again, logits)


def test_wrong_layers(clip) -> None:
    network = frozen(build("tsm_tiny", num_classes=4))
    network.net.idle = nn.Identity()
    network.net.act = network.net.layer3[0].act1 = network.net.layer4[0].act1 = nn.ReLU()
    for layer in ("net.layer9", "net.fc", "net.idle", "net.act"):
        with pytest.raises(ValueError, match=layer):
            grad_cam(network, clip, layer=layer)
    with pytest.raises(ValueError, match="no forward_features"):
        grad_cam(nn.Flatten(), clip)


@pytest.mark.parametrize("frames", [1, 5, 20])
def test_the_map_is_that_of_the_sub_network(predictor, pixels, frames) -> None:
    heat = predictor.heat_map(pixels, frames=frames)

    prediction = predictor(pixels, frames=frames)
    assert heat.label == prediction.top(1)[0][0]
    assert (heat.values.shape, heat.values.dtype) == ((frames, 32, 32), torch.float32)
    assert heat.clip.indices == prediction.indices
    model = predictor.model
    network = ffn.extract(model, model.select(frames)).requires_grad_(False)
    x = predictor._normalize(heat.clip.pixels[None])
    maps, _ = grad_cam(network, x, CLASSES.index(heat.label))
    torch.testing.assert_close(heat.values, combine(maps, x.shape[2:]))
    assert maps[0].shape == (frames, 2, 2)


def test_labels_layers_and_clips(predictor, pixels) -> None:
    maps = {name: predictor.heat_map(pixels, frames=4, label=name).values for name in CLASSES}
    assert not torch.allclose(maps["up"], maps["down"])
    fine = predictor.heat_map(pixels, frames=4, layer="net.layer2")
    assert fine.layer == "net.layer2"
    assert not torch.allclose(fine.values, predictor.heat_map(pixels, frames=4).values)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        clip = predictor.reader(4).read(pixels)
        assert torch.equal(predictor.heat_map(clip, label="up").values, maps["up"])
    for given, options, named in (
        (pixels, {"label": "upp"}, "upp"),
        (pixels, {"frames": 0}, "0"),
        (clip, {"frames": 8}, "a clip has its frames already"),
    ):
        with pytest.raises(ValueError, match=named):
            predictor.heat_map(given, **options)


def test_threads_get_the_maps_of_a_single_thread_and_nothing_changes(predictor, pixels) -> None:
    model = predictor.model
    before = {key: value.clone() for key, value in model.state_dict().items()}
    wanted = [(frames, name) for frames in (2, 4, 7) for name in CLASSES]
    expected = {(n, c): predictor.heat_map(pixels, frames=n, label=c).values for n, c in wanted}
    model.activate(8)

    with ThreadPoolExecutor(4) as pool:
        found = pool.map(
            lambda job: predictor.heat_map(pixels, frames=job[0], label=job[1]), wanted
        )
        for job, heat in zip(wanted, found, strict=True):
            assert torch.equal(heat.values, expected[job])

    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(m.training or m._forward_hooks for m in model.modules())
    assert model.active == 8


def test_the_overlay_is_gray_without_evidence(predictor, pixels) -> None:
    heat = predictor.heat_map(pixels, frames=3)
    levels = torch.tensor([0.0, 0.4, 1.0])
    heat = replace(heat, values=levels[:, None, None].expand(3, 32, 32))
    frames = heat.clip.pixels.permute(1, 2, 3, 0).double()
    gray = (frames @ torch.tensor([0.299, 0.587, 0.114]).double())[..., None].numpy()
    for level, picture, below in zip(levels.tolist(), heat.overlay(), gray, strict=True):
        share = OPACITY * level
        assert np.abs(picture - ((1 - share) * below + share * COLOR)).max() <= 0.51
