"""Packed networks: outputs of the fused network, with fewer operators, for any network."""

from __future__ import annotations

import copy
import io
import os
import subprocess
import sys
import threading

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

import ffn
from ffn.export import can_pack, pack, packing
from ffn.export.graphs import CudaGraphs
from ffn.export.packed_layers import (
    MAX_SHAPES,
    CudnnConv2d,
    PackedConv2d,
    PackedLinear,
    PackedSum,
)
from ffn.layers import PerFrame
from ffn.zoo import create_model

pytestmark = pytest.mark.skipif(
    not can_pack(torch.float32), reason="this torch or processor has none of oneDNN's operators"
)
HALF = torch.bfloat16 if can_pack() else torch.float32  # bf16 where this processor has it
FAMILIES = ("tsm_tiny", "slowfast_tiny", "tea_tiny", "uniformer_tiny")


def packed_of(network: nn.Module) -> tuple[nn.Module, nn.Module]:
    """A fused network in bf16, where that can be packed, and packed."""
    half = copy.deepcopy(network).to(HALF)
    return half, pack(copy.deepcopy(half))


def check(network: nn.Module, clip: Tensor) -> nn.Module:
    """Packed, a network has its outputs in fp32; in bf16 it is as close to them as unpacked."""
    half, packed = packed_of(network)
    with torch.inference_mode():
        expected = network(clip)
        largest = expected.abs().max()
        plain = (half(clip.to(HALF)).float() - expected).abs().max() / largest
        found = (packed(clip.to(HALF)).float() - expected).abs().max() / largest
        in_fp32 = (pack(copy.deepcopy(network))(clip) - expected).abs().max() / largest
    assert found <= 2 * plain + 0.01
    assert in_fp32 <= 1e-5
    return packed


def operators(network: nn.Module, clip: Tensor) -> dict[str, int]:
    """How often a forward pass calls each operator."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        network(clip)
    return {event.key: event.count for event in profile.key_averages()}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("frames", [1, 4, 7])
def test_outputs_of_the_families(name: str, frames: int) -> None:
    torch.manual_seed(0)
    model = ffn.convert(create_model(name, num_classes=5), (2, 4)).eval()
    fused = ffn.fuse(model, frames=frames)
    for batch in (1, 3):
        packed = check(fused, torch.randn(batch, 3, frames, 32, 32))
    left = [type(layer) for layer in packed.modules() if type(layer) in (nn.Conv2d, nn.Linear)]
    assert not left
    packed_layers = (PackedConv2d, PackedLinear)
    assert sum(isinstance(layer, packed_layers) for layer in packed.modules()) > 5


def test_activations_and_sums_are_part_of_the_convolutions() -> None:
    """tsm_tiny has four blocks of two convolutions, three of them with a convolved shortcut."""
    torch.manual_seed(0)
    model = ffn.convert(create_model("tsm_tiny", num_classes=5), (4,)).eval()
    half, packed = packed_of(ffn.fuse(model, frames=4))
    clip = torch.randn(1, 3, 4, 32, 32).to(HALF)
    with torch.inference_mode():
        before, after = operators(half, clip), operators(packed, clip)
    assert before["aten::relu_"] == 11
    assert before["aten::add_"] == 4
    assert after.get("aten::add_", 0) == 0
    assert after.get("aten::relu_", 0) <= 3  # of the stem, which is no traced module
    convolutions = sum(isinstance(layer, nn.Conv2d) for layer in half.modules())
    # Three sums are written over convolved shortcuts; the first block adds what the stem returns.
    assert after["mkldnn::_convolution_pointwise_"] == 3
    assert after["mkldnn::_convolution_pointwise"] == convolutions - 3


class Block(nn.Module):
    """Convolutions whose readers are of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 1)
        self.third = nn.Conv2d(8, 8, 1, bias=False)
        self.relu = nn.ReLU()
        self.inplace = nn.ReLU(inplace=True)
        self.gelu = nn.GELU()
        self.tanh = nn.GELU("tanh")
        self.how = "relu"

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "relu":
            return self.relu(self.first(x))
        if self.how == "two readers":
            y = self.first(x)
            return self.relu(y) + y
        if self.how == "sum":
            return self.first(x) + x
        if self.how == "sum on the left":
            y = x.sin()
            return self.inplace(y + self.first(x))
        if self.how == "in place":
            y = self.first(x)
            y += self.second(x)
            return self.inplace(y)
        if self.how == "its input changes":  # before the sum is computed
            y = self.first(x)
            x = self.inplace(x)
            return self.relu(y + x)
        if self.how == "called twice":
            return self.relu(self.first(self.relu(self.first(x))))
        if self.how == "broadcast":
            return self.relu(self.first(x) + 1.0)
        if self.how == "gelu":
            return self.tanh(self.second(self.gelu(self.first(x))))
        if self.how == "with itself":
            y = self.first(x)
            return self.relu(y + y)
        if self.how == "functions":
            return F.relu(self.third(F.interpolate(self.first(x), scale_factor=2)))
        if x.sum() > 0:  # cannot be traced
            return self.relu(self.first(x))
        return self.gelu(self.second(x))


@pytest.mark.parametrize(
    "how",
    [
        *("relu", "two readers", "sum", "sum on the left", "in place", "its input changes"),
        *("called twice", "broadcast", "gelu", "with itself", "functions", "values"),
    ],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_readers(how: str, layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    block = nn.Sequential(Block()).eval()
    block[0].how = how
    x = torch.randn(2, 8, 9, 11).to(memory_format=layout)
    half, packed = packed_of(block)
    with torch.inference_mode():
        expected = block(x.clone())
        largest = expected.abs().max()
        found = packed(x.clone().to(HALF)).float()
        plain = half(x.clone().to(HALF)).float()
        in_fp32 = pack(copy.deepcopy(block))(x.clone())
    assert (found - expected).abs().max() <= 0.02 * largest
    assert (found - plain).abs().max() <= 0.02 * largest
    assert (in_fp32 - expected).abs().max() <= 1e-5 * largest


def test_layers_that_keep_another_precision() -> None:
    block = nn.Sequential(nn.Conv2d(3, 4, 3).double(), nn.ReLU(), nn.Conv2d(4, 4, 3))
    packed = pack(block)
    assert [type(layer) for layer in packed[:3]] == [nn.Conv2d, nn.ReLU, PackedConv2d]
    reflect = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")).to(HALF)
    same = nn.Sequential(nn.Conv2d(3, 4, 3, padding="same")).to(HALF)
    assert type(pack(reflect)[0]) is type(pack(same)[0]) is nn.Conv2d


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        lambda: PerFrame(torchvision.models.resnet18()),
        lambda: PerFrame(torchvision.models.convnext_tiny()),
        lambda: PerFrame(torchvision.models.densenet121()),
        lambda: PerFrame(torchvision.models.shufflenet_v2_x0_5()),
        lambda: PerFrame(torchvision.models.mobilenet_v3_small()),
        lambda: torchvision.models.video.r2plus1d_18(),
        lambda: torchvision.models.video.swin3d_t(),
        lambda: PerFrame(timm.create_model("efficientnet_lite0")),
        lambda: PerFrame(timm.create_model("vit_tiny_patch16_224", img_size=64)),
        lambda: PerFrame(timm.create_model("tf_efficientnetv2_b0")),
        lambda: PerFrame(timm.create_model("hrnet_w18_small")),
        lambda: PerFrame(timm.create_model("res2net50_14w_8s")),
    ],
)
def test_networks_of_other_packages(build) -> None:
    torch.manual_seed(0)
    model = ffn.convert(build().eval(), (2, 4), alter="none").eval()
    check(
        ffn.fuse(model, frames=4, example=torch.randn(2, 3, 4, 64, 64)),
        torch.randn(2, 3, 4, 64, 64),
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_clips_of_other_lengths(name: str) -> None:
    """A sub-network answers at all lengths of its range, and beyond."""
    torch.manual_seed(0)
    model = ffn.convert(create_model(name, num_classes=5), (2, 4)).eval()
    fused = ffn.fuse(model, frames=4)
    packed = pack(copy.deepcopy(fused))
    for batch, frames in ((2, 4), (1, 8), (4, 3), (2, 5), (1, 12)):
        clip = torch.randn(batch, 3, frames, 32, 32)
        with torch.inference_mode():
            expected, found = fused(clip), packed(clip)
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("name", ["tsm_tiny", "tea_tiny"])
def test_threads_at_different_lengths(name: str) -> None:
    torch.manual_seed(0)
    model = ffn.convert(create_model(name, num_classes=5), (2, 4)).eval()
    _, packed = packed_of(ffn.fuse(model, frames=4))
    clips = [torch.randn(1, 3, n, 32, 32).to(HALF) for n in (2, 3, 4, 7)]
    with torch.inference_mode():
        expected = [packed(clip) for clip in clips]
    wrong = []

    def run(number: int) -> None:
        with torch.inference_mode():
            for _ in range(50):
                if not torch.equal(packed(clips[number]), expected[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


SHAPES = ((1, 256, 7, 7), (4, 256, 14, 14), (16, 256, 28, 28), (3, 256, 30, 17))


@pytest.mark.parametrize("kernel", [1, 3])
def test_layouts_of_weights(kernel: int) -> None:
    """A weight has one tensor per layout, whatever the shapes, and none is left over."""
    torch.manual_seed(0)
    conv = nn.Conv2d(256, 512, kernel, padding=kernel // 2).eval()
    packed = pack(nn.Sequential(copy.deepcopy(conv)))[0]
    weight, _ = packed.weights
    for shape in SHAPES * 2:
        x = torch.randn(shape).to(memory_format=torch.channels_last)
        with torch.inference_mode():
            expected, found = conv(x), packed(x)
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
        assert torch.equal(weight.for_input(x.shape).weight.to_dense(), conv.weight)
    tensors = [one.weight for one in weight._of_shape.values()]
    layouts = {torch.ops.mkldnn._get_mkldnn_serialized_md(one).numpy().tobytes() for one in tensors}
    assert set(weight._of_shape) == set(map(torch.Size, SHAPES))
    assert len({id(one) for one in tensors}) == len(layouts)


def test_number_of_remembered_shapes() -> None:
    packed = pack(nn.Sequential(nn.Conv2d(4, 8, 1)).eval())[0]
    weight, _ = packed.weights
    for size in range(1, 3 * MAX_SHAPES):
        weight.for_input(torch.Size((1, 4, size, size)))
        assert len(weight._of_shape) <= MAX_SHAPES + 1


REORDERS = """
import torch
from torch import nn
import ffn
from ffn.export import pack
from ffn.zoo import create_model

torch.manual_seed(0)
model = ffn.convert(create_model("tsm_r50", num_classes=5), (4,)).eval()
fused = ffn.fuse(model, frames=4).to({dtype})
packed = pack(nn.Sequential(fused))
clips = [torch.randn(batch, 3, 4, 64, 64).to({dtype}) for batch in (1, 2)]
with torch.inference_mode():
    for clip in clips:
        packed(clip)
    print("measured", flush=True)
    for clip in clips:
        packed(clip)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", sorted({str(torch.float32), str(HALF)}))
def test_no_weight_is_reordered_in_a_call(dtype: str) -> None:
    """oneDNN lists what it runs: a weight in another layout costs more than its convolution."""
    environment = {**os.environ, "ONEDNN_VERBOSE": "1"}
    code = REORDERS.format(dtype=dtype)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    before, _, after = done.stdout.partition("measured\n")
    assert "exec,cpu,reorder" in before
    assert after.count("exec,cpu,convolution") == 2 * 53
    assert "exec,cpu,reorder" not in after


class OptionalArgument(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act = nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()

    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:
        x = self.conv(x)
        return self.act(x if skip is None else x + skip)


class Length(nn.Module):
    """Reads a length that its parent sets."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.frames = nn.Conv2d(8, 8, 1), 1

    def forward(self, x: Tensor) -> Tensor:
        clips = x.view(-1, self.frames, *x.shape[1:])
        return self.conv(clips.roll(1, 1).flatten(0, 1))


class Net(nn.Module):
    """One of several ways to use layers that a trace does not show."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.stem, self.gate, self.act = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.ReLU()
        self.first, self.second = OptionalArgument(), OptionalArgument()
        self.length = Length()
        self.hooked = nn.Conv2d(8, 8, 1)
        if how == "hook":
            self.hooked.register_forward_pre_hook(lambda _, given: (2 * given[0],))
        self.fc = nn.Linear(8, 5)

    def forward(self, clip: Tensor) -> Tensor:
        frames = clip.shape[2]
        x = self.stem(clip.movedim(2, 1).flatten(0, 1))
        x = self.block(x, frames)
        return self.fc(x.mean((2, 3))).unflatten(0, (-1, frames)).mean(1)

    def block(self, x: Tensor, frames: int) -> Tensor:
        if self.how == "optional argument":
            return self.second(self.first(x), x)
        if self.how == "keyword":
            return self.second(self.first(x=x), skip=x)
        if self.how == "hook":
            return self.hooked(x)
        if self.how == "weight":
            x = F.conv2d(x, self.hooked.weight, self.hooked.bias)
            return x.to(self.fc.weight.dtype) * self.fc.weight.sum()
        self.length.frames = frames
        return self.length(x)


class Gated(nn.Module):
    """A sum with a tensor of another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate, self.act = nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 1), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(x) + self.gate(x.mean((2, 3), keepdim=True)))


class GatedClips(nn.Module):
    def __init__(self, kernel: tuple[int, int, int]) -> None:
        super().__init__()
        self.conv, self.gate = nn.Conv3d(3, 8, kernel), nn.Conv3d(3, 8, 1)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(x) + self.gate(x.mean((2, 3, 4), keepdim=True)))


class Residual(nn.Module):
    """A block that adds its input, in one of several ways; those from the third on read it again.

    All but the first two must leave the input as it is.
    """

    WAYS = ("plain", "identities", "gated", "own input", "view", "pooled", "returned", "hooked")

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.relu, self.site, self.downsample = nn.ReLU(), nn.Identity(), nn.Identity()
        self.seen: list[Tensor] = []
        if how == "hooked":
            self.site.register_forward_hook(lambda *given: self.seen.append(given[2]))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "own input":
            return self.relu(self.first(x) + x)
        y = self.relu(self.first(self.site(x)))
        if self.how == "gated":
            z = self.relu(self.second(y) + x)
            return self.first(z * x)
        if self.how == "view":
            rows = x.flatten(2)
            z = self.relu(self.second(y) + x)
            return self.first(z + rows.unflatten(2, x.shape[2:]))
        if self.how == "pooled":
            top = F.max_pool2d(x, 1)
            return self.first(self.relu(self.second(y) + x) + top)
        z = self.relu(self.second(y) + self.downsample(x))
        return self.relu(z - x) if self.how == "returned" else z


def overwritten(network: nn.Module, clip: Tensor) -> int:
    """How many sums a forward pass writes over a summand."""
    with torch.inference_mode():
        return operators(network, clip).get("mkldnn::_convolution_pointwise_", 0)


@pytest.mark.parametrize("how", Residual.WAYS)
def test_sums_are_written_over_inputs_that_nothing_else_reads(how: str) -> None:
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Residual(how) for _ in range(3)))
    network = nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 1)), blocks).eval()
    packed = check(network, torch.randn(2, 3, 9, 11))
    clip = torch.randn(2, 3, 9, 11, dtype=HALF).to(memory_format=torch.channels_last)
    # The first block does not know what else holds its input.
    assert overwritten(packed, clip) == (2 if how in Residual.WAYS[:2] else 0)


def test_empty_and_short_chains() -> None:
    torch.manual_seed(0)
    blocks = nn.Sequential(nn.Sequential(), nn.Sequential(Residual("plain")), nn.Sequential())
    check(blocks.eval(), torch.randn(2, 8, 9, 11))


def test_a_block_that_is_called_twice() -> None:
    torch.manual_seed(0)
    block = Residual("plain")
    packed = check(nn.Sequential(block, block, Residual("plain")).eval(), torch.randn(2, 8, 9, 11))
    assert overwritten(packed, torch.randn(2, 8, 9, 11, dtype=HALF)) >= 1


def test_inputs_and_outputs_of_chains_are_left_alone() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(*(Residual("plain") for _ in range(3))).eval()
    packed = pack(copy.deepcopy(network))
    x = torch.randn(2, 8, 9, 11).to(memory_format=torch.channels_last)
    before, outputs = x.clone(), []
    with torch.inference_mode():
        assert overwritten(packed, x) == 2
        assert torch.equal(x, before)
        for one in packed:  # as networks do that return the features of several blocks
            outputs.append(one(outputs[-1] if outputs else x))
        expected = [network[: n + 1](x) for n in range(3)]
    for one, other in zip(outputs, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)

    seen: list[Tensor] = []
    packed[0].register_forward_hook(lambda *given: seen.append(given[2]))
    with torch.inference_mode():
        torch.testing.assert_close(packed(x), expected[2], rtol=1e-5, atol=1e-5)
        assert overwritten(packed, x) == 1
    torch.testing.assert_close(seen[0], expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_blocks_of_the_families_write_over_their_inputs() -> None:
    """All but the first of each stage, which adds a convolved shortcut and writes over that."""
    for name, sums in (("tsm_r50", 16), ("slowfast_r50", 32), ("tea_r50", 16), ("uniformer_s", 7)):
        model = ffn.convert(create_model(name, num_classes=5), (4,)).eval()
        fused = ffn.fuse(model, frames=4)
        clip = torch.randn(1, 3, 4, 32, 32)
        packed = check(fused, clip)
        assert overwritten(packed, clip.to(HALF)) == sums


def test_made_in_inference_mode() -> None:
    """There, the operators of a forward pass are others, and tensors are of another kind."""
    torch.manual_seed(0)
    with torch.inference_mode():
        model = ffn.convert(create_model("tsm_tiny", num_classes=5), (4,)).eval()
        clip = torch.randn(1, 3, 4, 32, 32)
        fused = ffn.fuse(model, frames=4, example=clip)
        packed = pack(copy.deepcopy(fused))
        expected = model(clip)
    assert not fused.fusion.kept
    torch.testing.assert_close(packed(clip.clone()), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("how", ["optional argument", "keyword", "hook", "weight", "length"])
def test_what_a_trace_does_not_show(how: str) -> None:
    torch.manual_seed(0)
    check(Net(how).eval(), torch.randn(2, 3, 4, 9, 11))


def test_sums_with_other_shapes() -> None:
    torch.manual_seed(0)
    check(nn.Sequential(Gated()).eval(), torch.randn(2, 8, 9, 11))
    for kernel in ((1, 3, 3), (3, 1, 1)):
        fused = ffn.fuse(nn.Sequential(GatedClips(kernel)), example=torch.randn(2, 3, 4, 9, 11))
        packed = check(fused, torch.randn(2, 3, 4, 9, 11))
        assert any(isinstance(one, PackedSum) for one in packed.modules())


def test_a_transformer_layer() -> None:
    """Its fast path reads the weights of its linear layers."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval().requires_grad_(False)
    check(layer, torch.randn(2, 5, 16))


def test_weights_can_be_read() -> None:
    conv, linear = nn.Conv2d(6, 8, 3, groups=2, stride=2), nn.Linear(5, 7)
    packed = pack(nn.ModuleList([copy.deepcopy(conv), copy.deepcopy(linear)]))
    for before, after in zip((conv, linear), packed, strict=True):
        assert torch.equal(before.weight, after.weight)
        assert torch.equal(before.bias, after.bias)


def test_packed_networks_are_neither_fused_nor_exported(tmp_path) -> None:
    packed = pack(ffn.fuse(create_model("tsm_tiny", num_classes=5), frames=4))
    with pytest.raises(ValueError, match=r"TSM has packed layers .* pack a copy of it"):
        ffn.fuse(packed)
    with pytest.raises(ValueError, match="has packed layers"):
        ffn.export(packed, tmp_path / "net.pt2", size=32)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Linear(3, 2)),
        nn.Sequential(nn.Conv2d(3, 2, 1)),
        nn.Sequential(nn.Conv3d(3, 8, (5, 7, 7), padding=(2, 3, 3)).bfloat16()),
    ],
    ids=["linear", "conv", "windows"],
)
def test_packed_networks_are_not_moved_or_copied(network: nn.Module) -> None:
    """Without an error, a file of their state would be empty."""
    if not can_pack(next(network.parameters()).dtype):
        pytest.skip("needs oneDNN's operators")
    state = network.state_dict()
    packed = pack(network)
    uses = {
        "to": lambda: packed.to(torch.float64),
        "state": packed.state_dict,
        "load": lambda: packed.load_state_dict(state),
        "copy": lambda: copy.deepcopy(packed),
        "save": lambda: torch.save(packed, io.BytesIO()),
    }
    for use in uses.values():
        with pytest.raises(RuntimeError, match="a packed network cannot be moved, converted"):
            use()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tsm.dla46_c"])
def test_blocks_with_optional_arguments_of_timm(name: str) -> None:
    torch.manual_seed(0)
    network = ffn.fuse(create_model(name, num_classes=5))
    check(network, torch.randn(1, 3, 4, 64, 64))


def test_packing_beside_running_threads() -> None:
    """torch.fx would replace the calls of all modules of the process while it traces."""
    torch.manual_seed(0)
    fused = ffn.fuse(create_model("tsm_tiny", num_classes=5))
    running = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()).eval()
    x, stop, failed = torch.randn(1, 3, 4, 4), threading.Event(), []
    expected = running(x)

    def run() -> None:
        while not stop.is_set():
            try:
                failed.extend([] if torch.equal(running(x), expected) else ["wrong"])
            except Exception as error:
                failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        packed = [pack(copy.deepcopy(fused)) for _ in range(10)]
    finally:
        stop.set()
        thread.join()
    assert not failed
    assert all(any(isinstance(m, PackedSum) for m in one.modules()) for one in packed)


@pytest.mark.parametrize("name", [*FAMILIES, "tsm_mobilenetv2"])
def test_layers_for_cuda(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which convolutions have a ReLU and a sum; on a CPU, the layers compute them one by one."""
    monkeypatch.setattr(packing, "_device", lambda layer: "cuda")
    monkeypatch.setitem(packing.DTYPES, "cuda", (torch.float32,))
    torch.manual_seed(0)
    model = ffn.convert(create_model(name, num_classes=5), (2, 4)).eval()
    fused = ffn.fuse(model, frames=4)
    packed, clip = pack(copy.deepcopy(fused)), torch.randn(2, 3, 4, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(packed(clip), fused(clip), rtol=1e-4, atol=1e-5)
    convs = [layer for layer in packed.modules() if isinstance(layer, CudnnConv2d)]
    sums = {layer.activation for layer in packed.modules() if isinstance(layer, PackedSum)}
    assert not any(layer.options[-1] > 1 for layer in convs)  # groups
    assert not any(isinstance(layer, PackedLinear) for layer in packed.modules())
    if name in ("tsm_tiny", "slowfast_tiny", "tea_tiny"):
        assert "relu" in sums
        assert {"relu", "none"} <= {layer.activation for layer in convs}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FAMILIES)
def test_packed_on_cuda(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = ffn.convert(create_model(name, num_classes=5), (2, 4)).eval()
    fused, clip = ffn.fuse(model, frames=4), torch.randn(2, 3, 4, 64, 64)
    with torch.inference_mode():
        expected = fused(clip)
        largest = expected.abs().max()
        half = copy.deepcopy(fused).cuda().to(dtype)
        packed = pack(copy.deepcopy(half))
        clip = clip.cuda().to(dtype)
        plain = (half(clip).float().cpu() - expected).abs().max() / largest
        found = (packed(clip).float().cpu() - expected).abs().max() / largest
        graph = (CudaGraphs(packed)(clip).float().cpu() - expected).abs().max() / largest
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            packed(clip)
    assert found <= 1.5 * plain + 0.005
    assert graph <= 1.5 * plain + 0.005
    called = {event.key: event.count for event in profile.key_averages()}
    convs = [layer for layer in packed.modules() if isinstance(layer, CudnnConv2d)]
    if name != "uniformer_tiny":  # it has no ReLU
        assert called["aten::cudnn_convolution_relu"] >= 4
        assert called["aten::cudnn_convolution_add_relu"] >= 4
    assert convs
