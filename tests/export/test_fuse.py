"""Fused networks against the networks they come from, and folds against formulas."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable

import pytest
import timm
import torch
from export_helpers import BATCH_NORM, ByLength, assert_close, randomize
from torch import Tensor, nn
from torch.nn import functional as F

import ffn
from ffn.core import FrameFlexible, PrivateModules, WeightAlteration
from ffn.export import FuseError, fuse
from ffn.export.kernels import As2d, InFloat32, choose_kernels
from ffn.layers import PerFrame

FAMILIES = ["tsm_tiny", "tea_tiny", "slowfast_tiny", "uniformer_tiny", "vit_tiny"]


@pytest.mark.parametrize("frames", [1, 4, 7, 16])
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_families(name: str, frames: int) -> None:
    torch.manual_seed(0)
    plain = ffn.create_model(name, num_classes=5)
    model = randomize(ffn.convert(plain, (4, 8, 16), interpolate=True))

    fused = ffn.fuse(model, frames)

    for batch in (1, 3):
        clip = torch.randn(batch, 3, frames, 64, 32 if name != "uniformer_tiny" else 64)
        assert_close(fused(clip), model(clip))
    gone = (FrameFlexible, PrivateModules, nn.Dropout)
    assert not any(isinstance(module, gone) for module in fused.modules())
    if name not in ("uniformer_tiny", "vit_tiny"):
        assert not any(isinstance(m, (BATCH_NORM, WeightAlteration)) for m in fused.modules())
        assert fused.fusion.kept == ()
    assert not fused.training
    assert not any(p.requires_grad for p in fused.parameters())


@pytest.mark.parametrize("frames", [1, 4])
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_fused_families_in_bf16(name: str, frames: int) -> None:
    torch.manual_seed(0)
    model = ffn.convert(ffn.create_model(name, num_classes=5), (4, 8)).eval()
    clip = torch.randn(2, 3, frames, 64, 64)
    expected = model(clip)
    found = ffn.fuse(model, frames).bfloat16()(clip.bfloat16()).float()
    assert (found - expected).norm() < 0.1 * expected.norm()


def test_uniformer_keeps_its_layer_norms() -> None:
    model = ffn.convert(ffn.create_model("uniformer_tiny", num_classes=5), (4, 8)).eval()
    report = ffn.fuse(model, 4).fusion
    norms = {f"embeds.{i}.norm" for i in range(4)}
    assert set(report.kept) >= norms | {"norm"} | {f"blocks.3.0.norm{k}" for k in (1, 2)}
    assert report.folded["blocks.0.0.norm1"] == ("blocks.0.0.conv1",)
    assert "kept (embeds.0.norm, embeds.1.norm, embeds.2.norm, …); largest" in str(report)


class Net(nn.Module):
    """Layers for images, applied to every frame, and the mean of their output."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, clip):
        return self.layers(clip.transpose(1, 2).flatten(0, 1)).mean((2, 3))


def norm(channels: int) -> nn.Module:
    return randomize(nn.BatchNorm2d(channels))


def test_a_norm_after_a_layer_by_hand() -> None:
    torch.manual_seed(0)
    net = Net(nn.Conv2d(3, 6, 3, padding=1, groups=3), norm(6)).eval()
    conv, bn = net.layers

    fused = ffn.fuse(net)

    scale = bn.weight / (bn.running_var + bn.eps).sqrt()
    weight, bias = fused.layers[0].weight, fused.layers[0].bias
    torch.testing.assert_close(weight, conv.weight * scale[:, None, None, None])
    torch.testing.assert_close(bias, (conv.bias - bn.running_mean) * scale + bn.bias)
    assert type(fused.layers[1]) is nn.Identity
    assert fused.fusion.folded == {"layers.1": ("layers.0",)}


@pytest.mark.parametrize("groups", [1, 2])
def test_a_norm_before_a_layer_by_hand(groups: int) -> None:
    torch.manual_seed(0)
    net = Net(
        nn.ReLU(), nn.Conv2d(3, 4, 1), nn.ReLU(), norm(4), nn.Conv2d(4, 6, 3, groups=groups)
    ).eval()
    bn, conv = net.layers[3:]

    fused = ffn.fuse(net)

    scale = bn.weight / (bn.running_var + bn.eps).sqrt()
    shift = bn.bias - bn.running_mean * scale
    weight, bias = conv.weight.clone(), conv.bias.clone()
    per_group = 4 // groups
    for out in range(6):
        for i in range(per_group):
            channel = out // (6 // groups) * per_group + i
            bias[out] += conv.weight[out, i].sum() * shift[channel]
            weight[out, i] *= scale[channel]
    torch.testing.assert_close(fused.layers[4].weight, weight)
    torch.testing.assert_close(fused.layers[4].bias, bias)
    assert fused.fusion.folded == {"layers.3": ("layers.4",)}


@torch.no_grad()
def test_an_alteration_on_any_layer_of_a_foreign_network() -> None:
    torch.manual_seed(0)
    net = PerFrame(timm.create_model("regnety_002", num_classes=3))
    model = randomize(ffn.convert(net, (4, 8), alter=["*.conv1.conv", "net.head.fc"]))

    fused = ffn.fuse(model, 8)

    clip = torch.randn(1, 3, 6, 64, 64)
    assert_close(fused(clip), model(clip))
    assert fused.fusion.kept == ()
    assert "net.head.fc.alteration" in fused.fusion.folded
    assert not any(hasattr(m, "alteration") or m._forward_pre_hooks for m in fused.modules())
    assert isinstance(fused.net.stem.bn, nn.Sequential)  # the activation of timm's layer remains


@pytest.mark.parametrize("mode", ["zeros", "reflect"])
@pytest.mark.parametrize("kernel", [(1, 3, 3), (3, 3, 3)])
@torch.no_grad()
def test_altered_3d_convolutions_of_a_foreign_network(kernel: tuple, mode: str) -> None:
    torch.manual_seed(0)
    padding = tuple(size // 2 for size in kernel)
    layers = [nn.Conv3d(3, 4, kernel, padding=padding, padding_mode=mode), nn.BatchNorm3d(4)]
    layers += [nn.ReLU(), nn.Conv3d(4, 4, kernel, padding=padding, padding_mode=mode)]
    layers += [nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 2)]
    clip = torch.randn(1, 3, 4, 16, 16)
    for alter in ("none", ["0", "3"]):
        model = randomize(ffn.convert(nn.Sequential(*layers), (4, 8), alter=alter))
        fused = ffn.fuse(model, 4, example=clip)
        assert_close(fused(clip), model(clip))
        assert "1" in fused.fusion.folded


class Toy(nn.Module):
    """Layers, and a function of them and a clip."""

    def __init__(self, run: Callable[[Toy, Tensor], Tensor]) -> None:
        super().__init__()
        self.run, self.drop, self.fc = run, nn.Dropout3d(), nn.Linear(3, 12)
        self.conv, self.tied, self.same = (nn.Conv3d(3, 3, 1) for _ in range(3))
        self.wide, self.padded = nn.Conv3d(3, 3, 3), nn.Conv3d(3, 3, 3, padding=1)
        self.bn, self.hooked = nn.BatchNorm3d(3), nn.BatchNorm3d(3)
        self.tokens = nn.BatchNorm1d(12)
        self.site = ffn.layers.AlterationSite(3)
        self.body = nn.Sequential(self.conv, self.drop, self.bn)
        self.weight = nn.Parameter(torch.randn(3, 3, 1, 1, 1))
        self.same.weight = self.tied.weight
        self.hooked.register_forward_hook(lambda module, args, output: 2 * output)
        randomize(self)

    def forward(self, clip: Tensor) -> Tensor:
        return self.run(self, clip).flatten(2).mean(2)


STAYS = {
    "the output is read twice": lambda net, x: net.bn(y := net.conv(x)) + y,
    "the layer runs twice": lambda net, x: net.bn(net.conv(net.conv(x))),
    "the norm runs twice": lambda net, x: net.bn(net.conv(net.bn(x))),
    "the output changes in place": lambda net, x: net.bn(net.conv(x).relu_()),
    "the weight is computed": lambda net, x: net.bn(F.conv3d(x, F.normalize(net.conv.weight))),
    "the weight is tied": lambda net, x: net.same(net.bn(net.tied(x)).relu()),
    "the bias is read": lambda net, x: net.bn(net.conv(x)) + net.conv.bias.sum(),
    "the weight is of no layer": lambda net, x: F.conv3d(net.bn(x), net.weight),
    "zeros are padded": lambda net, x: net.padded(net.bn(x.relu())),
    "zeros are padded by a function": lambda net, x: F.conv3d(
        net.bn(x), net.wide.weight, net.wide.bias, padding=1
    ),
    "the norm has a hook": lambda net, x: net.hooked(net.conv(x)),
    "the norm is over tokens": lambda net, x: net.tokens(
        net.fc(x.flatten(2)[..., :12].movedim(1, 2))  # (B, 12, 12)
    ),
}
FOLDS = {
    "a layer called by keyword": lambda net, x: net.bn(net.conv(input=x)),
    "dropout between": lambda net, x: net.bn(net.drop(net.conv(x))),
    "a network for longer clips": lambda net, x: net.bn(net.conv(net.wide(x))),
    "layers with two names": lambda net, x: net.body(x),
    "an addcmul that is no alteration": lambda net, x: torch.addcmul(
        input=net.bn(net.conv(x)), tensor1=x, tensor2=x
    ),
}


@pytest.mark.parametrize("case", [*STAYS, *FOLDS])
@torch.no_grad()
def test_a_norm_is_folded_only_where_it_is_exact(case: str) -> None:
    torch.manual_seed(0)
    net, clip = Toy({**STAYS, **FOLDS}[case]), torch.randn(2, 3, 4, 8, 8)
    fused = fuse(net)
    assert_close(fused(clip), net(clip))
    assert fused.fusion.folded == ({"bn": ("conv",)} if case in FOLDS else {})


@torch.no_grad()
def test_layers_whose_settings_are_read_keep_their_operators() -> None:
    torch.manual_seed(0)
    clip = torch.randn(2, 3, 4, 8, 8)
    net = Toy(lambda net, x: net.bn(net.conv(F.pad(x, (0, 0, 0, 0, net.conv.kernel_size[0], 0)))))
    fused = fuse(net, 4)
    assert_close(fused(clip), net(clip))
    assert isinstance(fused.conv, nn.Conv3d)
    assert isinstance(fuse(Toy(FOLDS["a layer called by keyword"])).conv, As2d)


@torch.no_grad()
def test_an_alteration_that_something_else_reads_stays() -> None:
    clip = torch.randn(1, 3, 8, 8, 8)
    for run, is_kept in (
        (lambda net, x: net.conv(net.site(x)), False),
        (lambda net, x: net.conv(y := net.site(x)) + y, True),
    ):
        model = randomize(ffn.convert(Toy(run), (4, 8), private="none"))
        fused = ffn.fuse(model, 8)
        assert_close(fused(clip), model(clip))
        assert ("site" in fused.fusion.kept) == is_kept


def test_the_model_does_not_change() -> None:
    model = randomize(ffn.convert(ffn.create_model("tsm_tiny", num_classes=3), (4, 8))).train()
    before = copy.deepcopy(model.state_dict())
    ffn.fuse(model, 4)
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(m.dilation == (1, 1) for m in model.modules() if isinstance(m, nn.Conv2d))


@pytest.mark.parametrize("frames", [8, 12])
@torch.no_grad()
def test_folds_are_proven_at_the_ends_of_the_range(frames: int) -> None:
    model = randomize(
        ffn.convert(ByLength(lambda frames: frames > 8), {8: (4, 11), 16: (12, 20)}, alter="none")
    )
    fused = ffn.fuse(model, frames)
    for count in (4, 9, 11) if frames == 8 else (12, 20):
        clip = torch.randn(1, 3, count, 8, 8)
        assert_close(fused(clip), model(clip))
    assert fused.fusion.folded == {}  # the ends, or clips of 1 and 2 frames, run through the other


@torch.no_grad()
def test_2d_forms() -> None:
    layers = [
        (nn.Conv3d(4, 6, (1, 3, 3), (1, 2, 2), (0, 1, 1), groups=2), As2d),
        (nn.Conv3d(4, 6, (1, 3, 1), padding=(0, 2, 0), dilation=(1, 2, 1)), As2d),
        (nn.Conv3d(4, 6, (3, 1, 1), (2, 1, 1), (1, 0, 0), bias=False), As2d),
        (nn.Conv3d(4, 6, (5, 1, 1), padding=(4, 0, 0), dilation=(2, 1, 1)), As2d),
        (nn.Conv3d(4, 6, (3, 1, 1), (1, 2, 2), (1, 0, 0)), InFloat32),
        (nn.Conv3d(4, 6, (1, 3, 3), padding=(0, 1, 1), padding_mode="reflect"), InFloat32),
        (nn.Conv3d(4, 6, (1, 3, 3), padding="same"), InFloat32),
    ]
    for layer, kind in layers:
        net = nn.Sequential(copy.deepcopy(layer))
        choose_kernels(net)
        assert type(net[0]) is kind
        for batch, frames in ((1, 1), (2, 5)):
            x = torch.randn(batch, 4, frames, 9, 7)
            for clip in (x, x.contiguous(memory_format=torch.channels_last_3d)):
                torch.testing.assert_close(net(clip), layer(x), rtol=1e-4, atol=1e-5)


def test_3d_convolutions_stay_in_fp32() -> None:
    network = nn.Sequential(nn.Conv3d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 4, 1))
    half, clip = fuse(network, 4).bfloat16(), torch.randn(1, 3, 1, 8, 8)
    assert [p.dtype for p in half.parameters()] == 2 * [torch.float32] + 2 * [torch.bfloat16]
    difference = (half(clip.bfloat16()).float() - network(clip)).abs().max()
    assert difference < 0.05 * network(clip).abs().max()
    again = fuse(half, 4)  # as an export does
    assert torch.equal(again(clip.bfloat16()), half(clip.bfloat16()))


def test_errors() -> None:
    class Two(Toy):
        def forward(self, clip: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(clip), clip

    plain = FOLDS["dropout between"]
    broken = Toy(plain)
    nn.init.constant_(broken.conv.weight, float("nan"))
    tsm = ffn.create_model("tsm_tiny", num_classes=3)
    for network, frames, message in (
        (ffn.convert(tsm, (4, 8)), None, "frames is missing"),
        (tsm, 0, "frames is 0"),
        (copy.deepcopy(tsm).bfloat16(), 4, "bfloat16"),
        (Two(plain), 4, "returns a tuple"),
        (nn.Conv3d(2, 4, 1), 4, "does not take the example"),
        (broken, 4, "NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            fuse(network, frames)


@torch.no_grad()
def test_a_fused_network_that_differs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    folding = importlib.import_module("ffn.export.folding")  # ffn.export is the function
    monkeypatch.setattr(folding, "_affine", lambda norm: (norm.weight, norm.bias))
    with pytest.raises(FuseError, match="differs by up to"):
        fuse(Toy(FOLDS["dropout between"]), 4)
