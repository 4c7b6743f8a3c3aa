"""Benchmark of single layers: the form that ffn runs against others with the same outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from timm.models.resnet import Bottleneck
from torch import Tensor, nn
from torch.nn import functional as F

from ffn.backbones.slowfast import Stem
from ffn.backbones.tea import MotionExcitation, TemporalConv
from ffn.backbones.uniformer import attention
from ffn.benchmarks.timing import Comparison, Variant, compare, interleave, peak_memory
from ffn.conv3d import Conv3d
from ffn.core import WeightAlteration
from ffn.export import can_pack, fuse, pack
from ffn.export.kernels import choose_kernels
from ffn.layers import ClipLength, ShiftConv2d, ShortcutConv3d, temporal_shift
from ffn.zoo import create_model

OURS = "ffn"
TOLERANCE = 1e-4  # accepted difference from the first form, of its largest value
TOLERANCE_OF_BF16 = 0.02  # each form rounds at other places

Form = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Layer:
    """A layer in several forms.

    Attributes:
        title: the layer, with its input; its precision, unless it is fp32.
        forms: by name; the first is the reference, `OURS` the one that networks of ffn run.
        x: the input; with ``trains``, the forms are timed with their backward pass.
        trains: the form is used in training.
    """

    title: str
    forms: Mapping[str, Form]
    x: Tensor
    trains: bool


def compare_layers(*, frames: int, rounds: int, device: torch.device) -> Iterator[Comparison]:
    """Compare the layers that were changed because a profile said so.

    Args:
        frames: T of the clips.
        rounds: timed calls of each form.
        device: CPU or CUDA.

    Raises:
        RuntimeError: two forms of a layer have other outputs or gradients.
    """
    torch.manual_seed(0)
    for layer in [*_trained_layers(frames, device), *_inference_layers(frames, device)]:
        yield _compare(layer, rounds, device)
    yield _compare_optimizers(rounds, device)


def _trained_layers(frames: int, device: torch.device) -> Iterator[Layer]:
    """Forward and backward, at the sizes of 112 px: the first stage of a ResNet-50."""
    x = torch.randn(frames, 256, 28, 28, device=device)
    x = x.to(memory_format=torch.channels_last)
    place = f"{frames} frames of 256 x 28 x 28"
    yield Layer(
        f"temporal shift, {place}",
        {
            "writes to slices": lambda x: _shift_by_slices(x, frames),
            "pad and concatenate": lambda x: _shift_by_padding(x, frames),
            OURS: lambda x: temporal_shift(x, frames),
        },
        x,
        trains=True,
    )

    length = ClipLength()
    length.frames = frames
    conv = nn.Conv2d(256, 64, 1, bias=False).to(device, memory_format=torch.channels_last)
    alteration = WeightAlteration(256).to(device)
    ours = ShiftConv2d(conv, length)
    ours.site = alteration
    yield Layer(
        f"shift, weight alteration and 1 x 1 convolution, {place}",
        {"of the features": lambda x: conv(alteration(temporal_shift(x, frames))), OURS: ours},
        x,
        trains=True,
    )

    temporal = TemporalConv(26, length, shifted=False).to(device)
    weight = temporal.conv.weight
    group = x[:, :26].contiguous(memory_format=torch.channels_last)
    yield Layer(
        f"temporal convolution of TEA, {frames} frames of 26 x 28 x 28",
        {
            "nn.Conv1d over pixels": lambda x: _over_time_1d(x, weight, frames),
            "nn.Conv3d": lambda x: _over_time_3d(x, weight, frames),
            OURS: temporal,
        },
        group,
        trains=True,
    )

    yield _block_layer(x, place)

    tokens = 98 * frames // 2  # of the last stage but one, at 112 px; UniFormer halves T
    qkv = torch.randn(3, 1, 5, tokens, 64, device=device)
    yield Layer(
        f"attention of UniFormer, {tokens} tokens, 5 heads",
        {
            "softmax of scores": _softmax_of_scores,
            OURS: lambda x: F.scaled_dot_product_attention(*x),
        },
        qkv,
        trains=True,
    )


def _block_layer(x: Tensor, place: str) -> Layer:
    """Forward and backward of a block's convolutions, in two memory layouts."""
    block = nn.Sequential(
        nn.Conv2d(256, 64, 1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
    ).to(x.device)
    last = copy.deepcopy(block).to(memory_format=torch.channels_last)
    return Layer(
        f"convolutions of a ResNet-50 block, {place}",
        {"default layout": lambda x: block(x.contiguous()), OURS: last},
        x,
        trains=True,
    )


def _inference_layers(frames: int, device: torch.device) -> Iterator[Layer]:
    """Forward alone, of single clips at 224 px."""
    images = torch.randn(frames, 256, 56, 56, device=device)
    images = images.to(memory_format=torch.channels_last)
    place = f"{frames} frames of 256 x 56 x 56"
    plain = nn.Conv2d(256, 64, 1, device=device).to(memory_format=torch.channels_last)
    yield Layer(
        f"1 x 1 convolution, {place}", {"torch": plain, OURS: _chosen(plain)}, images, trains=False
    )

    conv = nn.Conv2d(256, 64, 1, bias=False, device=device)
    norm = nn.BatchNorm2d(64, device=device)
    block = nn.Sequential(conv, norm, nn.ReLU()).to(memory_format=torch.channels_last).eval()
    folded = torch.nn.utils.fuse_conv_bn_eval(block[0], block[1])
    yield Layer(
        f"1 x 1 convolution, BatchNorm and ReLU, {place}",
        {"three layers": block, OURS: _chosen(nn.Sequential(folded, nn.ReLU()))},
        images,
        trains=False,
    )

    if device.type == "cpu" and can_pack(torch.float32):
        yield _residual_layer(images, place)
    if device.type == "cpu" and can_pack(torch.bfloat16):
        yield _stem_layer(frames)
        yield _attention_layer(frames)

    yield _motion_layer(images[:, :104].contiguous(memory_format=torch.channels_last), frames)

    clip = torch.randn(1, 64, frames, 56, 56, device=device)
    clip = clip.to(memory_format=torch.channels_last_3d)
    place = f"{frames} frames of 64 x 56 x 56"
    for name, kernel, padding in (
        ("spatial (1, 3, 3)", (1, 3, 3), (0, 1, 1)),
        ("temporal (3, 1, 1)", (3, 1, 1), (1, 0, 0)),
        ("pointwise", (1, 1, 1), 0),
    ):
        spatial = Conv3d(64, 64, kernel, padding=padding, device=device).for_inference()
        spatial = spatial.to(memory_format=torch.channels_last_3d)
        yield Layer(
            f"{name} convolution of a clip, {place}",
            {"nn.Conv3d": spatial, OURS: _chosen(spatial)},
            clip,
            trains=False,
        )

    shortcut = ShortcutConv3d(64, 64, 3, padding=1, groups=64, device=device).requires_grad_(False)
    shortcut = shortcut.to(memory_format=torch.channels_last_3d)
    yield Layer(
        f"position embedding of UniFormer with its shortcut, {place}",
        {"two operations": shortcut, OURS: shortcut.for_inference()},
        clip,
        trains=False,
    )


def _residual_layer(x: Tensor, place: str) -> Layer:
    """Packed residual blocks, whose chain writes sums over the shortcuts."""
    blocks = nn.Sequential(Bottleneck(256, 64), Bottleneck(256, 64), Bottleneck(256, 64)).eval()
    packed = pack(fuse(blocks, example=x))

    def one_by_one(x: Tensor) -> Tensor:
        for block in packed:  # called like this, a block does not know what else holds its input
            x = block(x)
        return x

    forms = {"sums in new tensors": one_by_one, OURS: packed}
    return Layer(f"three packed ResNet-50 blocks, {place}", forms, x, trains=False)


def _stem_layer(frames: int) -> Layer:
    """The stem of SlowFast's fast pathway, of which each frame has 8 channels."""
    stem = fuse(Stem(8, kernel=5, pool=True).eval()).bfloat16()
    clip = torch.randn(1, 3, frames, 224, 224).bfloat16()
    return Layer(
        f"stem of 5 x 7 x 7 with pooling in bf16, {frames} frames of 3 x 224 x 224",
        {"nn.Conv3d": stem, OURS: pack(copy.deepcopy(stem))},
        clip,
        trains=False,
    )


def _motion_layer(x: Tensor, frames: int) -> Layer:
    """The motion excitation of TEA's first stage."""
    length = ClipLength()
    length.frames = frames
    motion = MotionExcitation(x.shape[1], length).eval().requires_grad_(False)
    motion = motion.to(x.device, memory_format=torch.channels_last)
    return Layer(
        f"motion excitation of TEA, {frames} frames of {x.shape[1]} x 56 x 56",
        {"product and sum": lambda x: x + x * motion.gate(x), OURS: motion},
        x,
        trains=False,
    )


def _attention_layer(frames: int) -> Layer:
    """The attention of UniFormer's third stage, with half of the frames."""
    tokens = 196 * frames // 2
    return Layer(
        f"attention of UniFormer in bf16, {tokens} tokens, 5 heads",
        {
            "softmax of scores": _softmax_of_scores,
            OURS: lambda x: attention(*x),
        },
        torch.randn(3, 1, 5, tokens, 64).bfloat16(),
        trains=False,
    )


def _compare(layer: Layer, rounds: int, device: torch.device) -> Comparison:
    _check_equal(layer)
    calls = {name: _call(form, layer) for name, form in layer.forms.items()}
    peaks = {name: peak_memory(call, device) for name, call in calls.items()}
    seconds = interleave(calls, rounds=rounds, device=device)
    variants = [Variant(name, 1, seconds[name], peaks[name]) for name in calls]
    kind = "forward and backward" if layer.trains else "forward"
    pairs = [(OURS, name) for name in calls if name != OURS]
    return compare(f"{layer.title}, {kind}", variants, pairs)


def _call(form: Form, layer: Layer) -> Callable[[], object]:
    def train() -> None:
        x = layer.x.detach().requires_grad_()
        form(x).sum().backward()

    def infer() -> None:
        with torch.inference_mode():
            form(layer.x)

    return train if layer.trains else infer


def _check_equal(layer: Layer) -> None:
    """Raise RuntimeError unless all forms have the output and the gradient of the first one."""
    found = {}
    for name, form in layer.forms.items():
        x = layer.x.detach().clone().requires_grad_(layer.trains)
        out = form(x)
        if layer.trains:
            weights = torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape)
            (out * weights).sum().backward()
        found[name] = [out.detach(), *([x.grad] if layer.trains else [])]
    tolerance = TOLERANCE_OF_BF16 if layer.x.dtype is torch.bfloat16 else TOLERANCE
    first, *others = found
    for name in others:
        for one, other in zip(found[first], found[name], strict=True):
            difference = (one - other).abs().max() / one.abs().max()
            if not difference <= tolerance:
                raise RuntimeError(
                    f"{layer.title}: {name} differs from {first} by {difference:.1e} of the "
                    "largest value; a comparison of their times would mean nothing"
                )


def _compare_optimizers(rounds: int, device: torch.device) -> Comparison:
    """A step of AdamW for the parameters of tsm_r50."""
    network = create_model("tsm_r50").to(device)
    for parameter in network.parameters():
        parameter.grad = torch.randn_like(parameter)
    forms = {"for loop": {"foreach": False}, "foreach": {"foreach": True}, OURS: {"fused": True}}
    calls = {n: torch.optim.AdamW(network.parameters(), **o).step for n, o in forms.items()}
    seconds = interleave(calls, rounds=rounds, device=device)
    variants = [Variant(name, 1, seconds[name]) for name in calls]
    return compare("AdamW of tsm_r50", variants, [(OURS, n) for n in calls if n != OURS])


def _chosen(layer: nn.Module) -> nn.Module:
    """A copy with the operators that :func:`ffn.fuse` chooses."""
    network = nn.Sequential(copy.deepcopy(layer)).eval()
    choose_kernels(network)
    return network


def _softmax_of_scores(x: Tensor) -> Tensor:
    """Attention of queries, keys and values with 64 channels per head."""
    return (x[0] * 64**-0.5 @ x[1].mT).softmax(-1) @ x[2]


def _shift_by_slices(x: Tensor, frames: int) -> Tensor:
    """Copies into a tensor of zeros."""
    fold = x.shape[1] // 8
    clips = x.unflatten(0, (-1, frames))
    out = torch.zeros_like(clips)
    out[:, :-1, :fold] = clips[:, 1:, :fold]
    out[:, 1:, fold : 2 * fold] = clips[:, :-1, fold : 2 * fold]
    out[:, :, 2 * fold :] = clips[:, :, 2 * fold :]
    return out.flatten(0, 1)


def _shift_by_padding(x: Tensor, frames: int) -> Tensor:
    fold = x.shape[1] // 8
    clips = x.unflatten(0, (-1, frames))
    later, earlier, rest = clips.split([fold, fold, x.shape[1] - 2 * fold], 2)
    later = F.pad(later, (0, 0, 0, 0, 0, 0, 0, 1))[:, 1:]
    earlier = F.pad(earlier, (0, 0, 0, 0, 0, 0, 1, 0))[:, :-1]
    return torch.cat([later, earlier, rest], 2).flatten(0, 1)


def _over_time_1d(x: Tensor, weight: Tensor, frames: int) -> Tensor:
    channels, *area = x.shape[1:]
    clips = x.unflatten(0, (-1, frames)).permute(0, 3, 4, 2, 1)  # (B, H, W, C, T)
    out = F.conv1d(clips.flatten(0, 2), weight, padding=1, groups=channels)
    out = out.unflatten(0, (-1, *area)).permute(0, 4, 3, 1, 2)
    return out.flatten(0, 1)


def _over_time_3d(x: Tensor, weight: Tensor, frames: int) -> Tensor:
    clips = x.unflatten(0, (-1, frames)).transpose(1, 2)  # (B, C, T, H, W)
    out = F.conv3d(clips, weight[..., None, None], padding=(1, 0, 0), groups=x.shape[1])
    return out.transpose(1, 2).flatten(0, 1)
