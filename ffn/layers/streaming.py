"""What layers of a causal network know beyond a clip: its length, and frames before it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class StreamState(dict[nn.Module, Tensor]):
    """What layers keep of the frames of a stream so far; missing entries are zeros.

    Attributes:
        stride: frames of the stream that the next one stands for: its weight in averages.
        window: weight beyond which averages forget; None: they never do.
    """

    def __init__(self, stride: int = 1, window: float | None = None) -> None:
        super().__init__()
        self.stride, self.window = stride, window


class ClipLength(threading.local):
    """The number of frames T of the clip that a thread runs through a network, and its stream.

    A 2-D network processes B * T images, without T. :class:`PerFrame` sets T here for the layers
    that mix frames. Each thread has its own value, so threads may run clips of other lengths.

    Attributes:
        stream: if the thread runs the next frame of a stream, the state of that.
    """

    frames: int | None = None
    stream: StreamState | None = None

    @contextmanager
    def streaming(
        self, stride: int, window: float | None, kept: Mapping[nn.Module, Tensor]
    ) -> Iterator[StreamState]:
        """Run the next frame of a stream inside, from what layers kept; it updates the state."""
        self.stream = StreamState(stride, window)
        self.stream.update(kept)
        try:
            yield self.stream
        finally:
            self.stream = None

    def __deepcopy__(self, memo: dict) -> ClipLength:
        # A copied layer must read the value that its model sets. A copied model may share it too:
        # every forward sets it before reading it, and each thread has its own value.
        return self

    def __reduce__(self) -> tuple[type[ClipLength], tuple[()]]:
        return ClipLength, ()  # a pickle has no value; within one, all layers share a new object


class Past(nn.Module):
    """Puts the last frames before a clip in front of it: zeros, or those of its stream.

    Args:
        length: of the network.
        frames: how many.
    """

    keeps_frames = True  # in the state of a stream

    def __init__(self, length: ClipLength, frames: int) -> None:
        super().__init__()
        self.length, self.frames = length, frames

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, …) to (B, frames + T, …)."""
        stream = self.length.stream
        before = None if stream is None else stream.get(self)
        if before is None:
            before = x.new_zeros(x.shape[0], self.frames, *x.shape[2:])
        x = torch.cat([before, x], 1)
        if stream is not None:
            stream[self] = x[:, -self.frames :]
        return x


class Average(nn.Module):
    """The average over the frames of a clip, or over those of a stream so far.

    Entry n of a stream, of the weight w_n, changes the average by

        m_n = m_(n-1) + (x_n - m_(n-1)) w_n / W_n,    W_n = min(W_(n-1) + w_n, max(window, w_n))

    Args:
        length: of the network.
        frames: of an entry, which has this many times the weight of the stride.
    """

    keeps_frames = True

    def __init__(self, length: ClipLength, frames: int = 1) -> None:
        super().__init__()
        self.length, self.frames = length, frames

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, C)."""
        stream = self.length.stream
        if stream is None:
            return x.mean(1)
        x = x[:, 0].float()
        before = stream.get(self)
        if before is None:
            before = x.new_zeros(x.shape[0], x.shape[1] + 1)
        own = stream.stride * self.frames
        mean, weight = before[:, :-1], before[:, -1:] + own
        if stream.window is not None:
            weight = weight.clamp(max=max(stream.window, own))
        mean = mean + (x - mean) * (own / weight)
        stream[self] = torch.cat([mean, weight], 1)
        return mean
