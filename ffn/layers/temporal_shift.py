"""The temporal shift of TSM (Lin et al., ICCV 2019, 1811.08383, §3) and a convolution with it.

Both ways, or from the past alone: the form for streams.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ffn.layers.alteration_site import AlterationSite
from ffn.layers.streaming import ClipLength, Past


def temporal_shift(x: Tensor, frames: int, divisor: int = 8, *, causal: bool = False) -> Tensor:
    """Shift 1/divisor of the channels one frame backward in time, and as many one frame forward.

    Channels [0, f) of frame t come from frame t + 1, channels [f, 2f) from frame t - 1, with
    f = C // divisor. Frames beyond the ends of a clip are zero. If it is causal, channels [0, f)
    come from frame t - 1, and no others are shifted.

    Args:
        x: feature maps (N, C, H, W) with N = B * frames, clip-major.
        frames: T, frames of each clip.
        divisor: 8, as in the paper, shifts 1/8 + 1/8 of the channels; 1/8 if it is causal.
        causal: whether a frame reads none after it.

    Returns:
        A new tensor of x's shape.
    """
    fold = x.shape[1] // divisor
    folds = (0, fold) if causal else (fold, fold)
    # For exports and traces: without a condition on T or writes to slices, and in four dimensions,
    # which leaves OpenVINO the layout of its convolutions.
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        later, earlier, rest = x.split([*folds, x.shape[1] - sum(folds)], 1)
        time = torch.arange(frames, device=x.device).repeat(x.shape[0] // frames)
        time = time.view(-1, 1, 1, 1)
        earlier = F.pad(earlier, (0, 0, 0, 0, 0, 0, 1, 0))[:-1].masked_fill(time == 0, 0)
        if causal:
            return torch.cat([earlier, rest], 1)
        later = F.pad(later, (0, 0, 0, 0, 0, 0, 0, 1))[1:].masked_fill(time == frames - 1, 0)
        return torch.cat([later, earlier, rest], 1)
    needs_gradient = torch.is_grad_enabled() and x.requires_grad
    return (_Shift.apply if needs_gradient else _shift)(x, frames, folds, False)


class _Shift(torch.autograd.Function):
    """The shift, or its reverse; each is the gradient of the other.

    torch's own gradient of writes to slices copies the feature map several times.
    """

    @staticmethod
    def forward(x: Tensor, frames: int, folds: tuple[int, int], is_reverse: bool) -> Tensor:
        return _shift(x, frames, folds, is_reverse)

    @staticmethod  # apart from forward, so that torch.func can differentiate it
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _: Tensor) -> None:
        frames, folds, is_reverse = inputs[1:]
        ctx.options = frames, folds, not is_reverse

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _Shift.apply(gradient, *ctx.options), None, None, None


def _shift(x: Tensor, frames: int, folds: tuple[int, int], is_reverse: bool) -> Tensor:
    out = torch.empty_like(x)
    n, c, h, w = x.shape
    if x.is_contiguous(memory_format=torch.channels_last):
        # As (B, T, H * W, C), of which torch copies slices in longer runs.
        shape, channels = (n // frames, frames, h * w, c), 3
        clips, shifted = x.permute(0, 2, 3, 1).view(shape), out.permute(0, 2, 3, 1).view(shape)
    else:
        channels = 2
        clips, shifted = x.unflatten(0, (-1, frames)), out.unflatten(0, (-1, frames))
    following, previous = (0, folds[0]), folds
    if is_reverse:
        following, previous = previous, following

    given, taken = clips.narrow(channels, *following), shifted.narrow(channels, *following)
    taken[:, :-1] = given[:, 1:]
    taken[:, -1] = 0
    given, taken = clips.narrow(channels, *previous), shifted.narrow(channels, *previous)
    taken[:, 1:] = given[:, :-1]
    taken[:, 0] = 0
    rest = sum(folds), c - sum(folds)
    shifted.narrow(channels, *rest).copy_(clips.narrow(channels, *rest))

    return out


class ShiftConv2d(nn.Conv2d):
    """Temporal shift, alteration site and convolution; state-dict keys are those of ``nn.Conv2d``.

    Args:
        conv: the convolution to replace; its weights are shared, not copied.
        length: holds the clip's T; the model sets it.
        divisor, causal: see :func:`temporal_shift`.
    """

    def __init__(
        self, conv: nn.Conv2d, length: ClipLength, divisor: int = 8, *, causal: bool = False
    ) -> None:
        nn.Module.__init__(self)  # attributes and weights are those of the given convolution
        self.__dict__.update({k: v for k, v in conv.__dict__.items() if not k.startswith("_")})
        self._reversed_padding_repeated_twice = conv._reversed_padding_repeated_twice
        self.weight, self.bias = conv.weight, conv.bias
        self.site = AlterationSite(conv.in_channels)
        self.length = length
        self.divisor = divisor
        self.past = Past(length, 1) if causal else None

    def shift(self, x: Tensor) -> Tensor:
        """The temporal shift alone, (N, C, H, W)."""
        if self.length.stream is None:
            causal = self.past is not None
            return temporal_shift(x, self.length.frames, self.divisor, causal=causal)
        fold = x.shape[1] // self.divisor
        before = self.past(x[:, None, :fold])[:, 0]
        return torch.cat([before.contiguous(memory_format=torch.channels_last), x[:, fold:]], 1)

    def forward(self, x: Tensor) -> Tensor:
        """Shift, alter, convolve: (N, C, H, W) to (N, C', H', W')."""
        x = self.shift(x)
        if self.groups > 1:
            return super().forward(self.site(x))
        # An alteration of the weights, W (1 + a), instead of one of the features. torch's flop
        # counter fails on modules that take a parameter in inference mode.
        is_eager = not torch.compiler.is_compiling()
        is_inference = is_eager and torch.is_inference_mode_enabled()
        weight = self.weight.detach() if is_inference else self.weight
        return self._conv_forward(x, self.site(weight), self.bias)
