"""Choose memory layouts and torch operators of a network for inference on a CPU.

Measured with one thread at 224 px: torch's 2-D convolutions in the channels-last layout are faster
than those in the default one, and faster than 3-D convolutions that span time or space alone. The
outputs are those of the given network up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ffn.core.convert import replace_all


class OverFrames(nn.Module):
    """Apply a 2-D layer to every frame of a clip.

    Args:
        layer: (N, C, H, W) to (N, C', H', W'); it keeps the channels-last layout.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, input: Tensor, *more: Tensor) -> Tensor:
        """(B, C, T, H, W) to (B, C', T, H', W'); a layer may take more tensors."""
        frames = self.layer(*map(self._frames, (input, *more)))
        return as_clips(frames, input.shape[0], frames.shape[2:])

    @staticmethod
    def _frames(x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 4, 1).flatten(0, 1).permute(0, 3, 1, 2)  # (N, C, H, W)


class OverTime(nn.Module):
    """Apply a 2-D convolution of kernel k x 1 to the time and the pixels of a clip.

    Args:
        layer: (B, C, T, P) to (B, C', T', P) with P = H * W; it keeps the channels-last layout.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, input: Tensor, *more: Tensor) -> Tensor:
        """(B, C, T, H, W) to (B, C', T', H, W); a layer may take more tensors."""
        pixels = self.layer(*map(self._pixels, (input, *more)))
        return as_clips(pixels, input.shape[0], input.shape[3:])

    @staticmethod
    def _pixels(x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 4, 1).flatten(2, 3).permute(0, 3, 1, 2)  # (B, C, T, P)


class InFloat32(nn.Module):
    """A layer that stays in fp32 when its network is converted to bf16 or fp16.

    Args:
        layer: maps a tensor to a tensor. Its parameters follow the network to other devices.
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
    """Replace the convolutions and poolings of a network by faster equivalents, in place.

    3-D convolutions that stay are computed in fp32: in bf16, oneDNN (torch 2.15) reads memory that
    is not initialized if the kernel spans more frames than the clip has.
    """
    spatial = [m for m in network.modules() if isinstance(m, (nn.Conv3d, nn.MaxPool3d))]
    faster = {id(module): _as_2d(module) for module in spatial}
    replace_all(network, {key: flat for key, flat in faster.items() if flat is not None})
    left = [module for module in network.modules() if isinstance(module, nn.Conv3d)]
    for module in network.modules():
        if isinstance(module, nn.Conv3d):
            module.to(memory_format=torch.channels_last_3d)
        elif isinstance(module, nn.Conv2d):
            module.to(memory_format=torch.channels_last)
            if module.kernel_size == (1, 1):
                # Dilation does not change a kernel of one pixel. Without it, torch runs its slow
                # kernel for one thread and fewer than 16 images (ATen/native/Convolution.cpp).
                module.dilation = (2, 2)
    replace_all(network, {id(conv): InFloat32(conv) for conv in left})


def _as_2d(layer: nn.Conv3d | nn.MaxPool3d) -> nn.Module | None:
    """A 2-D form of a layer that spans time or space alone; None if it spans both, or has hooks."""
    if has_hooks(layer):
        return None
    if type(layer) is nn.MaxPool3d:
        sizes = [
            _three(v) for v in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        ]
        if [size[0] for size in sizes[:3]] != [1, 1, 0] or layer.return_indices:
            return None
        return OverFrames(nn.MaxPool2d(*(size[1:] for size in sizes), ceil_mode=layer.ceil_mode))
    if (
        type(layer) is not nn.Conv3d
        or layer.padding_mode != "zeros"
        or layer.padding in ("same", "valid")
    ):
        return None
    if (layer.kernel_size[0], layer.stride[0], layer.padding[0]) == (1, 1, 0):
        return OverFrames(_conv2d(layer, slice(1, 3)))
    if layer.kernel_size[1:] == layer.stride[1:] == (1, 1) and layer.padding[1:] == (0, 0):
        return OverTime(_conv2d(layer, slice(0, 2)))
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


def as_clips(x: Tensor, batch: int, area: torch.Size) -> Tensor:
    """View the channels-last output of a 2-D layer as clips (B, C, T, H, W)."""
    # Through one dimension: for batches of 1, torch returns a stride by which torch.cat does not
    # recognize the layout.
    channels = x.shape[1]
    flat = x.permute(0, 2, 3, 1).flatten()
    return flat.view(batch, -1, *area, channels).permute(0, 4, 1, 2, 3)


def _three(size: int | tuple[int, int, int]) -> tuple[int, int, int]:
    return size if isinstance(size, tuple) else (size, size, size)
