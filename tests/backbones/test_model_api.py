"""timm's names on video networks: features, head, classifier."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from torch import Tensor, nn

import ffn
from ffn import backbones
from ffn.core import PrivateModules

NAMES = ("tsm_tiny", "tea_tiny", "slowfast_tiny", "uniformer_tiny", "vit_tiny")
FORMS = ("plain", "flexible", "extracted", "fused")


def build(name: str, form: str = "plain", **options: object) -> nn.Module:
    """A network whose frame counts have different norms and alterations, in one of its forms."""
    torch.manual_seed(0)
    model = backbones.build(name, num_classes=5, **options)
    flexible = ffn.convert(model, (2, 4)).eval()
    with torch.no_grad():
        for private in flexible.modules():
            if isinstance(private, PrivateModules):
                for parameter in private.parameters():
                    parameter.add_(0.1 * torch.rand_like(parameter))
    if form == "plain":
        return model.eval()
    if form == "flexible":
        return flexible
    if form == "extracted":
        return ffn.extract(flexible, 4)
    return ffn.fuse(flexible, 4, example=torch.randn(1, 3, 4, 32, 32))


def clip_of(frames: int) -> Tensor:
    return torch.randn(2, 3, frames, 32, 32, generator=torch.Generator().manual_seed(frames))


def classifier_input(model: nn.Module, clip: Tensor) -> Tensor:
    """The input of the classifier in a forward pass, averaged over frames if it has a row each."""
    seen: list[Tensor] = []
    hook = model.get_classifier().register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(clip)
    hook.remove()
    return seen[0].unflatten(0, (len(clip), -1)).mean(1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [*NAMES, "tsm.mobilenetv3_small_050"])
@torch.no_grad()
def test_head_of_features_is_the_forward_pass(name: str, form: str) -> None:
    model = build(name, form)
    for frames in (1, 2, 3, 4):
        clip = clip_of(frames)
        features = model.forward_features(clip)
        if form == "flexible":
            assert model.active == (2 if frames < 3 else 4)

        assert torch.equal(model.forward_head(features), model(clip))
        pre_logits = model.forward_head(features, pre_logits=True)
        assert pre_logits.shape == (2, model.head_hidden_size)
        assert torch.equal(pre_logits, classifier_input(model, clip))

    assert model.num_classes == 5
    if form != "fused":
        assert model.get_classifier().weight.shape == (5, model.head_hidden_size)


@torch.no_grad()
def test_shapes_of_features() -> None:
    clip = clip_of(3)

    assert build("tsm_tiny").forward_features(clip).shape == (2, 3, 128, 2, 2)
    assert build("tea_tiny").forward_features(clip).shape == (2, 3, 256, 2, 2)
    slow, fast = build("slowfast_tiny").forward_features(clip)
    assert (slow.shape, fast.shape) == ((2, 512, 2, 2, 2), (2, 128, 3, 2, 2))
    assert build("slowfast_tiny").num_features == 512 + 128
    assert build("uniformer_tiny").forward_features(clip).shape == (2, 64, 2, 2, 2)
    mobile = build("tsm.mobilenetv3_small_050")
    assert mobile.forward_features(clip).shape == (2, 3, mobile.num_features, 1, 1)
    assert (mobile.num_features, mobile.head_hidden_size) == (288, 1024)


@torch.no_grad()
def test_without_a_shift_the_features_are_those_of_timm() -> None:
    """An unshifted TSM is timm's own network on each frame."""
    net = timm.create_model("resnet18", num_classes=5).eval()
    model = backbones.TSM(copy.deepcopy(net), shift_divisor=10**6).eval()
    clip = clip_of(3)

    features, pre_logits = model.forward_features(clip), []
    for t in range(3):
        expected = net.forward_features(clip[:, :, t])
        torch.testing.assert_close(features[:, t], expected)
        pre_logits.append(net.forward_head(expected, pre_logits=True))
    averaged = model.forward_head(features, pre_logits=True)
    torch.testing.assert_close(averaged, torch.stack(pre_logits).mean(0))
    torch.testing.assert_close(net.fc(averaged), model(clip))
    assert model.num_features == net.num_features == 512


@pytest.mark.parametrize("name", NAMES)
def test_gradients_through_features_are_those_of_forward(name: str) -> None:
    model, clip = build(name, "flexible").train(), clip_of(4)
    other = copy.deepcopy(model)

    torch.manual_seed(1)
    model(clip).square().sum().backward()
    torch.manual_seed(1)
    logits = other.forward_head(other.forward_features(clip))
    other(clip_of(2))  # another sub-network between forward and backward
    logits.square().sum().backward()

    for (key, one), (_, two) in zip(
        model.named_parameters(), other.named_parameters(), strict=True
    ):
        assert (one.grad is None) == (two.grad is None), key
        assert one.grad is None or torch.equal(one.grad, two.grad), key


@pytest.mark.parametrize("form", ["plain", "flexible", "extracted"])
@pytest.mark.parametrize("name", [*NAMES, "tsm.mobilenetv3_small_050"])
def test_reset_classifier(name: str, form: str) -> None:
    model = build(name, form).double()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    clip = clip_of(4).double()
    with torch.no_grad():
        pre_logits = model.forward_head(model.forward_features(clip), pre_logits=True)

        model.reset_classifier(7)
        assert model.num_classes == 7
        assert model.get_classifier().weight.shape == (7, model.head_hidden_size)
        assert model.get_classifier().weight.std() < 0.03  # as the model's factory initializes it
        torch.testing.assert_close(model(clip), model.get_classifier()(pre_logits))
        assert model(clip).dtype == torch.float64
        changed = [k for k, v in model.state_dict().items() if not torch.equal(v, before[k])]
        assert len(changed) == 2

        model.reset_classifier(0)
        assert model.num_classes == 0
        torch.testing.assert_close(model(clip), pre_logits)


def test_private_and_altered_classifiers_are_not_reset() -> None:
    plain = build("uniformer_tiny")
    for model in (
        ffn.convert(plain, (2, 4), private="all"),
        ffn.convert(plain, (2,), alter=["head"]),
    ):
        with pytest.raises(ValueError, match="private to each frame count, or altered"):
            model.reset_classifier(3)


def test_foreign_networks_have_no_timm_names() -> None:
    flexible = ffn.convert(nn.Sequential(nn.BatchNorm3d(3)), (2, 4), alter="none")
    assert not hasattr(flexible, "forward_head")
    with pytest.raises(AttributeError, match="forward_features"):
        flexible.forward_features(clip_of(2))


@torch.no_grad()
def test_other_numbers_of_input_channels() -> None:
    torch.manual_seed(0)
    model = backbones.build("tsm.resnet18", num_classes=5, in_chans=8).eval()
    assert model(torch.randn(1, 8, 3, 32, 32)).shape == (1, 5)
    with pytest.raises(ValueError, match="C = 8"):
        model(torch.randn(1, 4, 8, 32, 32))
