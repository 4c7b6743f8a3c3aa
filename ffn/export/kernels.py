"""Choose memory layouts and torch operators of a network for inference on a CPU.

Measured with one thread at 224 px: torch's 2-D convolutions in the channels-last layout are faster
than those in the default one, and faster than 3-D convolutions that span time or space alone. The
outputs are those of the given network up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ffn.core.convert import replace_all


class As2d(nn.Module):
    """Apply a 2-D layer to every frame of a clip, or one of kernel k x 1 to its time and pixels.

    Args:
        layer: of frames, (N, C, H, W) to (N, C', H', W'); of time, (B, C, T, H * W) to
            (B, C', T', H * W). It keeps the channels-last layout.
        over_time: the layer is one of time.
    """

    def __init__(self, layer: nn.Module, *, over_time: bool) -> None:
        super().__init__()
        self.layer, self.over_time = layer, over_time

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, T, H, W) to (B, C', T', H', W')."""
        x = input.permute(0, 2, 3, 4, 1)  # (B, T, H, W, C)
        x = x.flatten(2, 3) if self.over_time else x.flatten(0, 1)
        x = self.layer(x.permute(0, 3, 1, 2))
        area = input.shape[3:] if self.over_time else x.shape[2:]

        # Through one dimension: for batches of 1, torch returns a stride by which torch.cat does
        # not recognize the layout.
        flat = x.permute(0, 2, 3, 1).flatten()
        return flat.view(input.shape[0], -1, *area, x.shape[1]).permute(0, 4, 1, 2, 3)


class InFloat32(nn.Module):
    """A layer that stays in fp32 when its network is converted to bf16 or fp16.

    Its parameters follow the network to other devices.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, input: Tensor) -> Tensor:
        """The output of the layer, in the precision of the input."""
        return self.layer(input.float()).to(input.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        def convert(t: Tensor) -> Tensor:
            converted = fn(t)
            return converted if converted.dtype == t.dtype else t.to(converted.device)

        return super()._apply(convert, recurse)


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of the module runs more than its forward."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def choose_kernels(network: nn.Module) -> None:
    """Replace the convolutions of a network by faster equivalents, in place.

    3-D convolutions that stay are computed in fp32: in bf16, oneDNN (torch 2.15) reads memory that
    is not initialized if the kernel spans more frames than the clip has.
    """
    faster = {id(m): _as_2d(m) for m in network.modules() if isinstance(m, nn.Conv3d)}
    replace_all(network, {key: flat for key, flat in faster.items() if flat is not None})
    exact = {id(module.layer) for module in network.modules() if isinstance(module, InFloat32)}
    left = [m for m in network.modules() if isinstance(m, nn.Conv3d) and id(m) not in exact]
    channels_last(network)
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1):
            # Dilation does not change a kernel of one pixel. Without it, torch runs its slow
            # kernel for one thread and fewer than 16 images (ATen/native/Convolution.cpp).
            module.dilation = (2, 2)
            if (module.stride, module.padding, module.groups) == ((1, 1), (0, 0), 1):
                module._conv_forward = partial(_pointwise, module)
    replace_all(network, {id(conv): InFloat32(conv) for conv in left})


def _pointwise(conv: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution of kernel 1; that of a single image is faster as a product of matrices."""
    if torch.compiler.is_compiling() or len(x) > 1:
        return type(conv)._conv_forward(conv, x, weight, bias)
    return F.linear(x.movedim(1, -1), weight.flatten(1), bias).movedim(-1, 1)


def channels_last(network: nn.Module) -> nn.Module:
    """Give the weights of all convolutions the channels-last layout, in place."""
    for module in network.modules():
        if isinstance(module, nn.Conv3d):
            module.to(memory_format=torch.channels_last_3d)
        elif isinstance(module, nn.Conv2d):
            module.to(memory_format=torch.channels_last)
    return network


def _as_2d(layer: nn.Conv3d) -> nn.Module | None:
    """A 2-D form of a layer that spans time or space alone; None if it spans both, or has hooks."""
    is_plain = type(layer) is nn.Conv3d and layer.padding_mode == "zeros"
    if not is_plain or isinstance(layer.padding, str) or has_hooks(layer):
        return None
    if (layer.kernel_size[0], layer.stride[0], layer.padding[0]) == (1, 1, 0):
        return As2d(_conv2d(layer, slice(1, 3)), over_time=False)
    if layer.kernel_size[1:] == layer.stride[1:] == (1, 1) and layer.padding[1:] == (0, 0):
        return As2d(_conv2d(layer, slice(0, 2)), over_time=True)
    return None


def _conv2d(conv: nn.Conv3d, kept: slice) -> nn.Conv2d:
    """The 2-D convolution over two of the three dimensions; the kernel has size 1 in the other."""
    flat = nn.Conv2d(
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size[kept],
        conv.stride[kept],
        conv.padding[kept],
        conv.dilation[kept],
        conv.groups,
        bias=conv.bias is not None,
    ).requires_grad_(False)
    flat.weight.data = conv.weight.detach().reshape(flat.weight.shape)
    flat.bias = conv.bias
    return flat
