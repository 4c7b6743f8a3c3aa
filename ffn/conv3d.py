"""Convolutions with right outputs, and 3-D ones with right gradients, in bf16 on a CPU."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized


class Conv3d(nn.Conv3d):
    """``nn.Conv3d``, in fp32 where torch's bf16 on a CPU is wrong.

    oneDNN (torch 2.15) reads uninitialized memory if the kernel spans more frames than the clip
    has: for the gradients of the weights, and on CPUs with AMX also for the outputs of 1 frame. NaN
    and values up to 1e38 were measured. Inference of 2 frames and more runs in bf16, except where
    :func:`is_one_column`.
    """

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        half = _half(x)
        if half is None:
            return super()._conv_forward(x, weight, bias)
        is_short = x.shape[2] == 1 and self.kernel_size[0] > 1
        if torch.is_grad_enabled() or is_short or _is_one_column(self, x):
            return _in_float32(super()._conv_forward, x, weight, bias).to(half)
        return super()._conv_forward(x, weight, bias)

    def for_inference(self) -> nn.Conv3d:
        """A convolution of torch with the same outputs, hooks and submodules; a copy."""
        conv = copy.deepcopy(self).requires_grad_(False)
        conv.__class__ = nn.Conv3d
        return conv


class Conv2d(nn.Conv2d):
    """``nn.Conv2d``, in fp32 where torch's bf16 on a CPU is wrong: :func:`is_one_column`."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        half = _half(x)
        if half and _is_one_column(self, x):
            return _in_float32(super()._conv_forward, x, weight, bias).to(half)
        return super()._conv_forward(x, weight, bias)


def is_one_column(width: int, kernel: int, padding: int, stride: int, dilation: int) -> bool:
    """Whether a strided kernel wider than a pixel has an output that is one pixel wide.

    On CPUs with AMX, oneDNN (torch 2.15) then returns NaN or wrong values in bf16, if the output is
    higher than a pixel and there are several images.

    Args:
        width: of the input.
        kernel: its width.
        padding: at both ends together.
        stride: along the width.
        dilation: along the width.
    """
    is_strided = kernel > 1 and stride > 1
    return is_strided and width + padding - dilation * (kernel - 1) - 1 < stride


def _is_one_column(conv: nn.Conv2d | nn.Conv3d, x: Tensor) -> bool:
    padding = sum(conv._reversed_padding_repeated_twice[:2])  # also of "same" and "valid"
    sizes = conv.kernel_size[-1], padding, conv.stride[-1], conv.dilation[-1]
    return is_one_column(x.shape[-1], *sizes)


def _half(x: Tensor) -> torch.dtype | None:
    """The precision of a convolution of a tensor on a CPU, if it is bf16 or fp16."""
    if not x.is_cpu:
        return None
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    return dtype if dtype in (torch.bfloat16, torch.float16) else None


def _in_float32(convolve: Callable, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return convolve(x.float(), weight.float(), None if bias is None else bias.float())


class _OfSubclass(Conv3d):
    """The part of ffn in the class that stands for a subclass of ``nn.Conv3d``."""

    _subclass: type[nn.Conv3d]

    def for_inference(self) -> nn.Conv3d:
        """The layer itself, as the network may use what its subclass adds."""
        return self

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:
        """Copy and pickle by the subclass: pickle finds a class by its name, and not this one."""
        _, _, *state = object.__reduce_ex__(self, protocol)
        return _empty, (self._subclass,), *state


def use_right_conv3d(network: nn.Module) -> nn.Module:
    """Make every ``nn.Conv3d`` of a network a `Conv3d`, in place, and those of subclasses both.

    Warns of layers with a ``forward`` of their own, which are right in bf16 if it calls that of
    ``nn.Conv3d``. Layers with a ``_conv_forward`` of their own or parametrized weights stay as they
    are, also with a warning.
    """
    doubtful = []
    for name, module in network.named_modules():
        kind = type(module)
        if not isinstance(module, nn.Conv3d) or isinstance(module, Conv3d):
            continue
        # Parametrizations have a class per layer, from which torch deletes them.
        fits = kind._conv_forward is nn.Conv3d._conv_forward and not is_parametrized(module)
        if fits:
            module.__class__ = Conv3d if kind is nn.Conv3d else _class_of_both(kind)
        if not fits or kind.forward is not nn.Conv3d.forward:
            doubtful.append(f"{name} ({kind.__name__})")
    if doubtful:
        shown = f"{', '.join(doubtful[:5])}{', …' * bool(doubtful[5:])}"
        warnings.warn(
            f"bf16 on a CPU may run torch's kernel, which can give NaN, in {len(doubtful)} 3-D "
            f"convolutions with a forward of their own or parametrized weights: {shown}",
            stacklevel=3,
        )
    return network


@functools.cache
def _class_of_both(subclass: type[nn.Conv3d]) -> type[nn.Conv3d]:
    """A class of the same name that is a `Conv3d` and a subclass of ``subclass``."""
    return type(subclass.__name__, (_OfSubclass, subclass), {"_subclass": subclass})


def _empty(subclass: type[nn.Conv3d]) -> nn.Conv3d:
    """A convolution that pickle fills with attributes."""
    kind = _class_of_both(subclass)
    return kind.__new__(kind)
