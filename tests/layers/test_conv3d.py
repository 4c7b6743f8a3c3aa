"""3-D convolutions of ffn against torch's in fp32, and a shortcut by hand."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torchvision.models import video
from torchvision.models.video.resnet import Conv3DSimple

from ffn.conv3d import Conv2d
from ffn.core import convert, extract
from ffn.export import can_pack, pack
from ffn.layers import Conv3d, ShortcutConv3d


def weight_gradient(conv: nn.Conv3d, frames: int, *, autocast: bool) -> torch.Tensor:
    torch.manual_seed(1)
    clip = torch.randn(2, conv.in_channels, frames, 16, 16)
    conv.zero_grad()
    stale = [torch.full((size,), 1e30) for size in (100, 1000, 10_000, 100_000)]
    del stale  # memory that a kernel may get and read
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = conv(clip)
    assert out.dtype is (torch.bfloat16 if autocast else torch.float32)
    out.float().sum().backward()
    return conv.weight.grad.clone()


@pytest.mark.parametrize("frames", [1, 2, 4])
@pytest.mark.parametrize("span", [3, 5])
def test_gradients_under_bf16_autocast_are_those_of_fp32(span: int, frames: int) -> None:
    torch.manual_seed(0)
    conv = Conv3d(8, 16, (span, 1, 1), padding=(span // 2, 0, 0), bias=False)
    expected = weight_gradient(conv, frames, autocast=False)
    found = weight_gradient(conv, frames, autocast=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02 * expected.abs().max().item())


def test_gradients_of_a_bf16_layer() -> None:
    torch.manual_seed(0)
    conv = Conv3d(8, 16, (5, 1, 1), padding=(2, 0, 0)).bfloat16()
    clip = torch.randn(2, 8, 2, 16, 16)
    conv(clip.bfloat16()).float().sum().backward()
    reference = nn.Conv3d(8, 16, (5, 1, 1), padding=(2, 0, 0))
    reference.load_state_dict(conv.state_dict())
    reference(clip.bfloat16().float()).sum().backward()
    expected = reference.weight.grad
    found = conv.weight.grad.float()
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02 * expected.abs().max().item())


@pytest.mark.parametrize("frames", [1, 2])
def test_gradients_of_a_converted_network_are_those_of_fp32(frames: int) -> None:
    """Of a network without layers of ffn, in a training loop of one's own."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv3d(3, 8, 5, padding=2, bias=False), nn.BatchNorm3d(8))
    model = convert(plain, (1, 2), alter="none").train()
    assert type(plain[0]) is nn.Conv3d
    clip = torch.randn(2, 3, frames, 16, 16)
    gradients = {}
    for half in (False, True):
        model.zero_grad()
        stale = [torch.full((size,), 1e30) for size in (100, 1000, 10_000, 100_000)]
        del stale
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            outputs = model(clip)
        outputs.float().pow(3).sum().backward()
        gradients[half] = model.model[0].weight.grad.clone()
    scale = gradients[False].abs().max().item()
    torch.testing.assert_close(gradients[True], gradients[False], rtol=0, atol=0.05 * scale)


@pytest.mark.parametrize("frames", [1, 2, 5])
@pytest.mark.parametrize("span", [1, 3, 5])
@torch.no_grad()
def test_outputs_in_bf16_are_those_of_fp32(span: int, frames: int) -> None:
    """On CPUs with AMX, torch's own layer gives NaN for 1 frame and a span of 3 or 5."""
    torch.manual_seed(0)
    conv = Conv3d(8, 16, (span, 5, 5), padding=(span // 2, 2, 2), bias=False)
    clip = torch.randn(2, 8, frames, 16, 16)
    expected = conv(clip)
    stale = [torch.full((size,), 1e30) for size in (100, 1000, 10_000, 100_000)]
    del stale
    found = conv.bfloat16()(clip.bfloat16()).float()
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02 * expected.abs().max().item())


class Kernels(torch.overrides.TorchFunctionMode):
    """Record the dtype in which each 3-D convolution runs; in autocast, it casts fp32 to bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[torch.dtype] = []

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if getattr(function, "__name__", "") == "conv3d":
            is_cast = torch.is_autocast_enabled("cpu")
            self.dtypes.append(torch.get_autocast_dtype("cpu") if is_cast else args[0].dtype)
        return function(*args, **(kwargs or {}))


def test_inference_in_bf16_runs_the_bf16_kernel() -> None:
    conv = Conv3d(2, 2, 1).bfloat16()
    with torch.no_grad(), Kernels() as kernels:
        conv(torch.randn(1, 2, 2, 4, 4).bfloat16())
    assert kernels.dtypes == [torch.bfloat16]


def training_dtypes(network: nn.Module, channels: int = 3) -> list[torch.dtype]:
    """The dtypes of the 3-D convolutions in a forward that computes gradients, in bf16."""
    with torch.autocast("cpu", torch.bfloat16), Kernels() as kernels:
        network(torch.randn(2, channels, 2, 16, 16))
    return kernels.dtypes


def test_subclasses_of_torchvision() -> None:
    """Its ``Conv3DSimple`` changes the constructor only."""
    torch.manual_seed(0)
    plain = video.r3d_18(num_classes=3)
    assert set(training_dtypes(plain)) == {torch.bfloat16}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flexible = convert(plain, (2, 4), alter=["layer1.0.conv1.0"]).eval()

    convolutions = [m for m in flexible.modules() if isinstance(m, nn.Conv3d)]
    assert len(convolutions) == 20
    assert all(isinstance(m, Conv3d) for m in convolutions)
    assert sum(isinstance(m, Conv3DSimple) for m in convolutions) == 16
    assert sum("Conv3DSimple(" in str(m) for m in convolutions) == 16
    assert set(training_dtypes(flexible)) == {torch.float32}
    assert type(plain.layer1[0].conv1[0]) is Conv3DSimple


@pytest.mark.slow
@torch.no_grad()
def test_copies_and_files_of_networks_with_subclasses(tmp_path: Path) -> None:
    torch.manual_seed(0)
    flexible = convert(video.r3d_18(num_classes=3), (2, 4), alter=["layer1.0.conv1.0"]).eval()
    clip = torch.randn(1, 3, 2, 16, 16)
    expected = flexible(clip)
    torch.save({"network": flexible, "clip": clip, "expected": expected}, tmp_path / "network.pt")

    copies = [copy.deepcopy(flexible), copy.deepcopy(copy.deepcopy(flexible))]
    copies += [pickle.loads(pickle.dumps(flexible, protocol)) for protocol in (2, 5)]
    copies.append(extract(flexible, 2))
    copies.append(torch.load(tmp_path / "network.pt", weights_only=False)["network"])
    for network in copies:
        assert torch.equal(network(clip), expected)
        found = [type(m) for m in network.modules() if isinstance(m, Conv3DSimple)]
        own = [type(m) for m in flexible.modules() if isinstance(m, Conv3DSimple)]
        assert found == own
    program = (
        "import sys, torch\n"
        "loaded = torch.load(sys.argv[1], weights_only=False)\n"
        "outputs = loaded['network'].eval()(loaded['clip'])\n"
        "torch.testing.assert_close(outputs, loaded['expected'])\n"
    )  # in a process that has not converted anything
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "network.pt")], check=True)


class OnlyConstructor(nn.Conv3d):
    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3, padding=1)
        self.extra = "kept"


class Padded(nn.Conv3d):
    """A forward of its own that calls that of torch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (1, 1, 1, 1, 2, 0)))


class Direct(nn.Conv3d):
    """A forward of its own that does not."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv3d(x, self.weight, self.bias)


class OwnKernel(nn.Conv3d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv3d(x, weight, bias)


def test_a_subclass_with_another_constructor() -> None:
    layers = nn.Sequential(OnlyConstructor(3), OnlyConstructor(3), nn.BatchNorm3d(3))
    flexible = convert(layers, (1, 2), alter="none")
    assert training_dtypes(flexible) == [torch.float32] * 2
    one, two = copy.deepcopy(flexible).model[:2]
    assert isinstance(one, OnlyConstructor)
    assert one.extra == "kept"
    assert type(one) is type(two)
    assert type(convert(extract(flexible, 1), (1, 2), alter="none").model[0]) is type(one)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(Padded, torch.float32), (Direct, torch.bfloat16), (OwnKernel, torch.bfloat16)],
)
def test_a_subclass_with_its_own_forward_is_named(kind: type, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv3d(3, 3, 1), kind(3, 4, 3), nn.BatchNorm3d(4)).eval()
    with pytest.warns(UserWarning, match=rf"in 1 3-D.*own.*: 1 \({kind.__name__}\)") as found:
        flexible = convert(layers, (1, 2), alter="none")
    assert [w.filename for w in found] == [__file__]
    clip = torch.randn(2, 3, 5, 16, 16)
    assert torch.equal(flexible(clip), layers(clip))
    with torch.autocast("cpu", torch.bfloat16), Kernels() as kernels:
        flexible(clip)
    assert kernels.dtypes == [torch.float32, dtype]


def test_parametrized_weights_stay_removable() -> None:
    layers = nn.Sequential(parametrizations.weight_norm(nn.Conv3d(3, 4, 3)), nn.BatchNorm3d(4))
    with pytest.warns(UserWarning, match=r"parametrized weights: 0 \(ParametrizedConv3d\)"):
        flexible = convert(layers, (1, 2), alter="none")
    parametrize.remove_parametrizations(flexible.model[0], "weight")
    assert type(flexible.model[0]) is nn.Conv3d


@torch.no_grad()
def test_a_merged_shortcut() -> None:
    torch.manual_seed(0)
    conv = ShortcutConv3d(3, 3, 3, padding=1, groups=3)
    clip = torch.randn(2, 3, 5, 6, 7)
    by_hand = clip + nn.functional.conv3d(clip, conv.weight, conv.bias, padding=1, groups=3)
    torch.testing.assert_close(conv(clip), by_hand)
    merged = conv.for_inference()
    assert type(merged) is nn.Conv3d
    assert not merged.weight.requires_grad
    torch.testing.assert_close(merged(clip), by_hand)
    difference = merged.weight - conv.weight
    assert difference[:, 0, 1, 1, 1].tolist() == pytest.approx([1, 1, 1])
    assert difference.abs().sum().item() == pytest.approx(3)


@torch.no_grad()
def test_for_inference() -> None:
    conv = Conv3d(4, 6, (3, 1, 2), (2, 1, 1), (1, 0, 1), bias=False)
    clip = torch.randn(2, 4, 5, 6, 7)
    found = conv.for_inference()
    assert type(found) is nn.Conv3d
    assert torch.equal(found(clip), conv(clip))
    conv = Conv3d(4, 6, 3, padding=1, padding_mode="reflect")
    conv.register_forward_hook(lambda module, inputs, outputs: outputs + 1)
    assert torch.equal(conv.for_inference()(clip), conv(clip))


# kernel, stride, padding and the widths at which the output has one column
STRIDED = [(2, 2, 0, (2, 3)), (3, 2, 1, (1, 2)), (3, (1, 2), 1, (1, 2)), (5, 3, 2, (1, 2, 3))]


@pytest.mark.parametrize(("kernel", "stride", "padding", "widths"), STRIDED)
@torch.no_grad()
def test_outputs_of_one_column_in_bf16(
    kernel: int, stride: int | tuple[int, int], padding: int, widths: tuple[int, ...]
) -> None:
    """On CPUs with AMX, torch's own layer gives NaN and wrong values for 8 images."""
    torch.manual_seed(0)
    flat = Conv2d(64, 128, kernel, stride, padding)
    steps = (stride, stride) if isinstance(stride, int) else stride
    deep = Conv3d(64, 128, (1, kernel, kernel), (1, *steps), (0, padding, padding))
    deep.weight.copy_(flat.weight[:, :, None])
    deep.bias.copy_(flat.bias)
    half, deep_half = copy.deepcopy(flat).bfloat16(), deep.bfloat16()
    packed = pack(nn.Sequential(copy.deepcopy(half))) if can_pack() else half
    for width in (*widths, widths[-1] + 1, widths[0]):
        images = torch.randn(8, 64, 6, width).to(memory_format=torch.channels_last)
        expected = flat(images)
        assert (expected.shape[3] == 1) == (width in widths)
        near = {"rtol": 0, "atol": 0.03 * expected.abs().max().item()}
        x = images.bfloat16()
        clip = x.unflatten(0, (2, 4)).transpose(1, 2)  # (B, C, T, H, W)
        for found in (half(x), packed(x), deep_half(clip).transpose(1, 2).flatten(0, 1)):
            assert found.dtype is torch.bfloat16
            torch.testing.assert_close(found.float(), expected, **near)
    assert packed is half or torch.equal(packed[0].weight, half.weight)


@torch.no_grad()
def test_outputs_of_one_column_under_autocast() -> None:
    torch.manual_seed(0)
    conv, images = Conv2d(64, 128, 3, 2, 1), torch.randn(8, 64, 6, 2)
    with torch.autocast("cpu", torch.bfloat16):
        found = conv(images)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.float(), conv(images), rtol=0, atol=0.03)
