"""Convolutions and linear layers that compute what follows them: sums with shortcuts, activations.

torch has such operators of oneDNN, for its compiler, and of cuDNN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ffn.conv3d import is_one_column
from ffn.export.kernels import OverFrames, OverTime

ACTIVATIONS = {"none": lambda x: x, "relu": F.relu, "gelu": F.gelu}  # by oneDNN's names
MAX_SHAPES = 32  # of inputs, for which a convolution remembers its packed weight


class Packed(NamedTuple):
    """A packed weight.

    Attributes:
        weight: of mkldnn.
        options: padding, stride, dilation, groups.
        taps: the part of the kernel that it has, per dimension.
        in_float32: it is in fp32, and the network in bf16, which is wrong for the input.
    """

    weight: Tensor
    options: tuple
    taps: tuple[slice, ...]
    in_float32: bool = False


class PackedWeight:
    """The weight of a convolution in the layout that oneDNN wants for the shape of the input.

    The layout depends on this shape. A weight in another layout is reordered in each call, by a
    slow general routine: fused ``tsm_r50`` in bf16 took 1.8 times as long on an AMD EPYC. Shapes
    with the same layout share one tensor. Taps of the kernel that only meet the padding are left
    out: of a kernel of 3 frames, one is left for clips of 1 frame.

    Args:
        weight: (C', C / groups, h, w), fp32 or bf16, on a CPU.
        options: padding, stride, dilation, groups.
    """

    def __init__(self, weight: Tensor, options: tuple) -> None:
        self.options, self.shape, self.dtype = options, weight.shape, weight.dtype
        whole = slice(None), slice(None)
        self._of_shape: dict[torch.Size | None, Packed] = {
            None: Packed(self._reorder(weight, options, None), options, whole)
        }

    def for_input(self, shape: torch.Size) -> Packed:
        """The packed weight for inputs of a shape (N, C, H, W), and the options to use it with."""
        found = self._of_shape.get(shape)
        return self._pack_for(shape) if found is None else found

    def dense(self) -> Tensor:
        """(C', C / groups, h, w), in the default layout."""
        return self._whole(list(self._of_shape.values())).weight.to_dense()

    def _whole(self, known: list[Packed]) -> Packed:
        return next(one for one in known if self._is_whole(one))

    def _is_whole(self, packed: Packed) -> bool:
        return packed.weight.shape == self.shape and not packed.in_float32

    def _pack_for(self, shape: torch.Size) -> Packed:
        known = list(self._of_shape.values())  # threads may be here at the same time
        whole = self._whole(known)
        taps, padding = _used_taps(shape[2:], self.shape[2:], self.options)
        options = padding, *self.options[1:]
        weight = whole.weight
        if taps != tuple(slice(0, size) for size in self.shape[2:]):
            weight = weight.to_dense()[(..., *taps)].contiguous()
        sides = self.options[0][1] * 2, self.options[1][1], self.options[2][1]
        is_wrong = is_one_column(shape[3], self.shape[3], *sides)  # in bf16
        in_float32 = self.dtype is torch.bfloat16 and is_wrong
        if in_float32:
            weight = (weight.to_dense() if weight.is_mkldnn else weight).float()
        packed = Packed(self._reorder(weight, options, shape), options, taps, in_float32)
        same = (one for one in known if one.taps == taps and _layout(one) == _layout(packed))
        packed = next(same, packed)
        kept = {None: whole} if len(known) > MAX_SHAPES else dict(self._of_shape)
        if self._is_whole(packed):
            kept.pop(None, None)  # packed without an input
        self._of_shape = {**kept, shape: packed}
        return packed

    def _reorder(self, weight: Tensor, options: tuple, shape: torch.Size | None) -> Tensor:
        size = None if shape is None else list(shape)
        # Tensors that are made under torch.inference_mode could not be used outside of it.
        with torch.inference_mode(False), torch.no_grad():
            weight = weight.to_dense() if weight.is_mkldnn else weight
            return torch.ops.mkldnn._reorder_convolution_weight(weight, *options, size)


def _used_taps(
    area: torch.Size, kernel: torch.Size, options: tuple
) -> tuple[tuple[slice, ...], list[int]]:
    """The taps of a kernel that meet more than padding, and the padding of a kernel of these.

    Args:
        area: height and width of the input.
        kernel: its height and width.
        options: padding, stride, dilation, groups.
    """
    taps, paddings = [], []
    for size, k, p, s, d in zip(area, kernel, *options[:3], strict=True):
        out = (size + 2 * p - d * (k - 1) - 1) // s + 1
        used = [j for j in range(k) if any(0 <= o * s - p + j * d < size for o in range(out))]
        first, last = (used[0], used[-1]) if used else (0, k - 1)
        padding = p - first * d
        # The padding is the same at both ends.
        same = padding >= 0 and (size + 2 * padding - d * (last - first) - 1) // s + 1 == out
        taps.append(slice(first, last + 1) if same else slice(0, k))
        paddings.append(padding if same else p)
    return tuple(taps), paddings


def _layout(packed: Packed) -> bytes:
    return torch.ops.mkldnn._get_mkldnn_serialized_md(packed.weight).numpy().tobytes()


def convolve(x: Tensor, weights: tuple[PackedWeight, Tensor | None], activation: str) -> Tensor:
    """A convolution (N, C, H, W) to (N, C', H', W') with packed weights and bias."""
    weight, bias = weights
    packed = weight.for_input(x.shape)
    operator = torch.ops.mkldnn._convolution_pointwise
    if packed.in_float32:
        bias = None if bias is None else bias.float()
        given = x.float(), packed.weight, bias, *packed.options
        return operator(*given, activation, [], "none").to(x.dtype)
    return operator(x, packed.weight, bias, *packed.options, activation, [], "none")


class PackedLayer(nn.Module):
    """A layer whose weights have a layout of a library.

    On a CPU they are no parameters: ``.to()`` would not change them, and ``state_dict()`` would
    leave them out. Both, loading, copying and pickling raise RuntimeError.
    """

    def _refuse(self, *given: Any, **more: Any) -> NoReturn:
        raise RuntimeError(
            "a packed network cannot be moved, converted, loaded, copied or saved: its weights "
            "have a layout of oneDNN or cuDNN. Do this with the fused network before it is packed"
        )

    _apply = _save_to_state_dict = _load_from_state_dict = __reduce_ex__ = _refuse


class PackedConv2d(PackedLayer):
    """A convolution with packed weights, an activation, and a sum before it.

    Args:
        weights: packed weight, bias.
        activation: "none", "relu" or "gelu".
        adds: the forward also takes what is added before the activation.
        overwrites: the output is written over what is added, if it is in the channels-last layout.
            This saves memory traffic: no tensor is allocated and filled for the output.
    """

    def __init__(
        self,
        weights: tuple[PackedWeight, Tensor | None],
        activation: str,
        *,
        adds: bool,
        overwrites: bool = False,
    ) -> None:
        super().__init__()
        self.weights, self.activation, self.adds = weights, activation, adds
        self.overwrites = overwrites

    @property
    def weight(self) -> Tensor:
        """A copy, for networks that read it."""
        return self.weights[0].dense()

    @property
    def bias(self) -> Tensor | None:
        """For networks that read it."""
        return self.weights[1]

    @property
    def options(self) -> tuple:
        """Padding, stride, dilation, groups."""
        return self.weights[0].options

    @property
    def shape(self) -> torch.Size:
        """(C', C / groups, h, w) of the weight."""
        return self.weights[0].shape

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """(N, C, H, W) to (N, C', H', W'); ``other`` has the shape of the output."""
        if not self.adds:
            return convolve(x, self.weights, self.activation)
        weight, bias = self.weights
        packed = weight.for_input(x.shape)
        if packed.in_float32:
            return ACTIVATIONS[self.activation](convolve(x, self.weights, "none") + other)
        weights = packed.weight, bias, *packed.options
        after = None if self.activation == "none" else self.activation
        if self.overwrites and other.is_contiguous(memory_format=torch.channels_last):
            operator = torch.ops.mkldnn._convolution_pointwise_.binary
            return operator(other, x, *weights, "add", 1, after, [], "none")
        operator = torch.ops.mkldnn._convolution_pointwise.binary
        return operator(x, other, *weights, "add", 1, after, [], "none")


class CudnnConv2d(PackedLayer):
    """A convolution on CUDA with a ReLU, and a sum before it.

    cuDNN computes them with the convolution; torch's convolution adds even the bias in a pass of
    its own. Without a ReLU, the layer is torch's convolution.

    Args:
        weight: (C', C / groups, h, w), bf16 or fp16, channels-last.
        bias: (C',).
        options: padding, stride, dilation, groups.
        activation: "none", "relu" or "gelu".
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, options: tuple, activation: str
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.options, self.shape = options, weight.shape
        self.activation = activation

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """(N, C, H, W) to (N, C', H', W'); ``other``, of the output's shape, is added before."""
        padding, stride, dilation, groups = self.options
        options = self.bias, stride, padding, dilation, groups
        if self.activation != "relu" or not x.is_cuda:
            x = F.conv2d(x, self.weight, *options)
            return ACTIVATIONS[self.activation](x if other is None else x + other)
        if other is None:
            return torch.cudnn_convolution_relu(x, self.weight, *options)
        return torch.cudnn_convolution_add_relu(x, self.weight, other, 1.0, *options)


class PackedSum(nn.Module):
    """A packed convolution, a sum with another tensor, and an activation.

    oneDNN and cuDNN add tensors of the output's shape and precision only; others are added here.

    Args:
        conv: takes its input and what is added.
        alone: the same convolution without sum and activation.
        activation: "none", "relu" or "gelu".
    """

    def __init__(self, conv: nn.Module, alone: nn.Module, activation: str) -> None:
        super().__init__()
        self.conv, self.alone, self.activation = conv, alone, activation

    def forward(self, x: Tensor, other: Tensor | float) -> Tensor:
        """The input of the convolution, and what is added to its output."""
        is_tensor = isinstance(other, Tensor) and other.dtype == x.dtype
        if is_tensor and other.shape == output_shape(self.alone, x.shape):
            return self.conv(x, other)
        return ACTIVATIONS[self.activation](self.alone(x) + other)


def output_shape(layer: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the output of a packed convolution for the shape of its input."""
    if isinstance(layer, AfterShift):
        return output_shape(layer.conv, shape)
    if isinstance(layer, OverFrames):
        b, c, t, h, w = shape
        _, c, h, w = output_shape(layer.layer, (b * t, c, h, w))
        return b, c, t, h, w
    if isinstance(layer, OverTime):
        b, c, t, h, w = shape
        _, c, t, _ = output_shape(layer.layer, (b, c, t, h * w))
        return b, c, t, h, w
    padding, stride, dilation, _ = layer.options
    channels, _, *kernel = layer.shape
    options = zip(shape[2:], kernel, padding, stride, dilation, strict=True)
    sizes = ((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, p, s, d in options)
    return shape[0], channels, *sizes


class PackedLinear(PackedLayer):
    """A linear layer with packed weights and an activation.

    Args:
        weights: packed weight, bias.
        activation: "none", "relu" or "gelu".
        out_features: D'.
    """

    def __init__(self, weights: tuple, activation: str, out_features: int) -> None:
        super().__init__()
        self.weights, self.activation, self.out_features = weights, activation, out_features

    @property
    def weight(self) -> Tensor:
        """A copy, for networks that read it."""
        return self.weights[0].to_dense()

    @property
    def bias(self) -> Tensor | None:
        """For networks that read it."""
        return self.weights[1]

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) to (…, D')."""
        operator = torch.ops.mkldnn._linear_pointwise
        return operator(x, *self.weights, self.activation, [], "none")


class AfterShift(nn.Module):
    """A packed convolution of a shifted tensor.

    Args:
        shift: the temporal shift.
        conv: the convolution.
    """

    def __init__(self, shift: Callable[[Tensor], Tensor], conv: PackedConv2d | CudnnConv2d) -> None:
        super().__init__()
        self.shift, self.conv = shift, conv

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C', H', W')."""
        return self.conv(self.shift(x), *more)
