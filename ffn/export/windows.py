"""3-D convolutions of few channels as 2-D ones, whose channels are those of several frames."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ffn.conv3d import Conv3d
from ffn.export.kernels import as_clips
from ffn.export.packed_layers import PackedLayer, PackedWeight, convolve

CHANNELS = 32  # of the output for one window, at which oneDNN's matrix products in bf16 are fast


def fits_windows(conv: nn.Module) -> bool:
    """Whether a layer is a 3-D convolution, of any precision, that windows of frames make faster.

    These are those of images, which have few channels, to fewer channels than a register holds, as
    the stem of SlowFast's fast pathway.
    """
    if type(conv) not in (nn.Conv3d, Conv3d) or conv.padding_mode != "zeros":
        return False
    if isinstance(conv.padding, str) or conv.groups > 1:
        return False
    is_thin = conv.in_channels <= 4 and conv.out_channels <= CHANNELS // 2
    # So that a clip of any length has an output.
    is_padded = 2 * conv.padding[0] >= conv.dilation[0] * (conv.kernel_size[0] - 1)
    return is_thin and is_padded and conv.kernel_size[0] > 1


class WindowWeights:
    """The weights of a 3-D convolution for windows of frames.

    Args:
        conv: one that :func:`fits_windows`, in bf16 or fp32 on a CPU.
    """

    def __init__(self, conv: nn.Conv3d) -> None:
        self.channels = conv.out_channels
        self.frames = CHANNELS // conv.out_channels  # of the output, per window
        self._weight = conv.weight.detach()
        self._bias = None if conv.bias is None else conv.bias.detach()
        self._time = [each[0] for each in (conv.padding, conv.stride, conv.dilation)]
        self._options = [
            *(list(each[1:]) for each in (conv.padding, conv.stride, conv.dilation)),
            1,
        ]
        self._packed: dict[int | None, tuple[PackedWeight, Tensor | None]] = {}

    def for_clip(self, x: Tensor) -> tuple[tuple[PackedWeight, Tensor | None], Tensor, int]:
        """Weights and input of the 2-D convolution for a clip.

        Args:
            x: (B, C, T, H, W).

        Returns:
            Packed weight and bias; the windows (B * number, channels, H, W), channels-last; T', the
            frames of the output. Its channels are those of the frames of a window, one after the
            other.
        """
        (padding, stride, dilation), (batch, channels, t, *area) = self._time, x.shape
        span = dilation * (self._weight.shape[2] - 1) + 1
        out = (t + 2 * padding - span) // stride + 1
        if out <= 2 * self.frames:  # the clip is the window, without a copy of its frames
            packed = self._packed.get(t) or self._pack(t, out, -padding, t, frames_first=False)
            planes = x.reshape(batch, channels * t, *area)
            return packed, planes.contiguous(memory_format=torch.channels_last), out

        number = -(-out // self.frames)
        length = (self.frames - 1) * stride + span  # of a window
        step = self.frames * stride
        packed = self._packed.get(None) or self._pack(
            None, self.frames, 0, length, frames_first=True
        )
        padded = x.new_zeros(batch, (number - 1) * step + length, channels, *area)
        present = padded[:, padding : padding + t]
        present.copy_(x[:, :, : present.shape[1]].transpose(1, 2))
        windows = padded.unfold(1, length, step).movedim(-1, 2).flatten(2, 3)
        return packed, windows.flatten(0, 1).contiguous(memory_format=torch.channels_last), out

    @torch.inference_mode(False)
    @torch.no_grad()
    def _pack(
        self, key: int | None, out: int, first: int, length: int, *, frames_first: bool
    ) -> tuple[PackedWeight, Tensor | None]:
        """Weight and bias for windows of ``length`` frames and ``out`` frames of the output.

        The kernel starts at the frame ``first`` of the window.
        """
        _, stride, dilation = self._time
        to, channels, span, *kernel = self._weight.shape
        weight = self._weight.new_zeros(out, to, channels, length, *kernel)
        for frame in range(out):
            for tap in range(span):
                source = first + frame * stride + tap * dilation
                if 0 <= source < length:
                    weight[frame, :, :, source] = self._weight[:, :, tap]
        if frames_first:
            weight = weight.transpose(2, 3)
        weight = weight.reshape(out * to, channels * length, *kernel)
        bias = None if self._bias is None else self._bias.repeat(out)
        self._packed[key] = packed = PackedWeight(weight, self._options), bias
        return packed


class ConvOverWindows(PackedLayer):
    """A 3-D convolution as a 2-D one over windows of frames, an activation and a pooling.

    A window is a few frames, or all of a short clip; its frames are channels. The zeros in its
    weights cost less than a kernel of few channels: in bf16, the stem of SlowFast's fast pathway
    takes 0.28 of the time on an Intel Xeon with AMX (``tools/benchmark.py layers``).

    Args:
        weights: of the convolution.
        activation: "none", "relu" or "gelu".
        pool: of every frame, after the activation.
    """

    def __init__(
        self, weights: WindowWeights, activation: str = "none", pool: nn.MaxPool2d | None = None
    ) -> None:
        super().__init__()
        self.weights, self.activation = weights, activation
        self.pool = nn.Identity() if pool is None else pool

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T, H, W) to (B, C', T', H', W')."""
        packed, windows, frames = self.weights.for_clip(x)
        y = self.pool(convolve(windows, packed, self.activation))
        channels = self.weights.channels
        y = y.permute(0, 2, 3, 1).unflatten(3, (-1, channels)).unflatten(0, (x.shape[0], -1))
        y = y.permute(0, 1, 4, 2, 3, 5).flatten(1, 2)[:, :frames]  # (B, T', H', W', C')
        return as_clips(y.flatten(0, 1).permute(0, 3, 1, 2), x.shape[0], y.shape[2:4])
