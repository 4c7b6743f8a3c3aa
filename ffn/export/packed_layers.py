"""Convolutions and linear layers that compute what follows them: sums with shortcuts, activations.

torch has such operators of oneDNN, for its compiler, and of cuDNN.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ffn.export.kernels import OverFrames, OverTime

ACTIVATIONS = {"none": lambda x: x, "relu": F.relu, "gelu": F.gelu}  # by oneDNN's names
MAX_SHAPES = 32  # of inputs, for which a convolution remembers its packed weight


class PackedWeight:
    """The weight of a convolution in the layout that oneDNN wants for the shape of the input.

    The layout depends on this shape. A weight in another layout is reordered in each call, by a
    slow general routine: fused ``tsm_r50`` in bf16 took 1.8 times as long on an AMD EPYC. Shapes
    with the same layout share one tensor.

    Args:
        weight: (C', C / groups, h, w), fp32 or bf16, on a CPU.
        options: padding, stride, dilation, groups.
    """

    def __init__(self, weight: Tensor, options: tuple) -> None:
        self.options, self.shape = options, weight.shape
        self._of_shape: dict[torch.Size | None, Tensor] = {None: self._reorder(weight, None)}

    def for_input(self, shape: torch.Size) -> Tensor:
        """The packed weight for inputs of a shape (N, C, H, W)."""
        found = self._of_shape.get(shape)
        return self._pack_for(shape) if found is None else found

    def dense(self) -> Tensor:
        """(C', C / groups, h, w), in the default layout."""
        return next(iter(self._of_shape.values())).to_dense()

    def _pack_for(self, shape: torch.Size) -> Tensor:
        known = list(self._of_shape.values())  # threads may be here at the same time
        packed = self._reorder(known[0], shape)
        packed = next((one for one in known if _layout(one) == _layout(packed)), packed)
        kept = {} if len(known) > MAX_SHAPES else dict(self._of_shape)
        kept.pop(None, None)  # packed without an input
        self._of_shape = {**kept, shape: packed}
        return packed

    def _reorder(self, weight: Tensor, shape: torch.Size | None) -> Tensor:
        size = None if shape is None else list(shape)
        # Tensors that are made under torch.inference_mode could not be used outside of it.
        with torch.inference_mode(False), torch.no_grad():
            weight = weight.to_dense() if weight.is_mkldnn else weight
            return torch.ops.mkldnn._reorder_convolution_weight(weight, *self.options, size)


def _layout(packed: Tensor) -> bytes:
    return torch.ops.mkldnn._get_mkldnn_serialized_md(packed).numpy().tobytes()


class PackedConv2d(nn.Module):
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
        weight, bias = self.weights
        weights = weight.for_input(x.shape), bias, *weight.options
        if not self.adds:
            operator = torch.ops.mkldnn._convolution_pointwise
            return operator(x, *weights, self.activation, [], "none")
        after = None if self.activation == "none" else self.activation
        if self.overwrites and other.is_contiguous(memory_format=torch.channels_last):
            operator = torch.ops.mkldnn._convolution_pointwise_.binary
            return operator(other, x, *weights, "add", 1, after, [], "none")
        operator = torch.ops.mkldnn._convolution_pointwise.binary
        return operator(x, other, *weights, "add", 1, after, [], "none")


class CudnnConv2d(nn.Module):
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


class PackedLinear(nn.Module):
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
