"""Networks with habits that ours do not have."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ffn
from ffn.core import PrivateModules


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
    model = ffn.convert(FrameTokens(), (2, 4), alter="none").eval()
    for module in model.modules():
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
    one, other = nn.LayerNorm(3), nn.LayerNorm(3)
    other.weight = one.weight
    model = ffn.convert(Layers(one=one, other=other), (2, 4), alter="none")

    for count in ("2", "4"):
        assert model.model.one[count].weight is model.model.other[count].weight
    assert model.model.one["2"].weight is not model.model.one["4"].weight
    small = ffn.extract(model, 2)
    assert small.one.weight is small.other.weight


def test_norm_tied_to_a_shared_layer_is_refused() -> None:
    norm, scale = nn.LayerNorm(3), nn.Linear(3, 1)
    scale.bias = nn.Parameter(torch.zeros(3))
    norm.bias = scale.bias
    with pytest.raises(ValueError, match=r"norm\.bias is the same parameter as scale\.bias"):
        ffn.convert(Layers(norm=norm, scale=scale), (2, 4), alter="none")


def test_plain_weights_load_into_a_norm_with_two_names() -> None:
    norm = nn.LayerNorm(3)
    plain = Layers(one=norm, fc=nn.Linear(3, 3), again=norm)
    model = ffn.convert(plain, (2, 4), alter="none")
    nn.init.normal_(norm.weight)

    model.load_state_dict(plain.state_dict())

    assert model.model.one is model.model.again
    for count in ("2", "4"):
        assert torch.equal(model.model.one[count].weight, norm.weight)


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


class ReadsItsNorm(nn.Module):
    """Calls a function with the parameters of a layer, as some implementations do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(3), nn.Linear(3, 2)

    def forward(self, clip: Tensor) -> Tensor:
        x = clip.mean((2, 3, 4))
        return self.head(F.layer_norm(x, (3,), self.norm.weight, self.norm.bias, self.norm.eps))


def test_a_norm_whose_parameters_are_read_is_not_idle() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clip = torch.randn(2, 3, 4, 8, 8)
        model = ffn.convert(ReadsItsNorm(), (2, 4), alter="none", example=clip)
    model.train()(clip).sum().backward()
    assert model.report.idle == ()
    assert model.model.norm["4"].weight.grad is not None


@pytest.mark.parametrize("name", ["tsm_tiny", "tea_tiny", "slowfast_tiny", "uniformer_tiny"])
def test_example_finds_nothing_in_our_networks(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ffn.convert(
            ffn.create_model(name, num_classes=5), (2, 4), example=torch.randn(1, 3, 3, 32, 32)
        )
    assert model.report.idle == ()
