"""How a network reads a stream: a clip of each window, or each frame once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from ffn.data import Normalize
from ffn.export import stream
from ffn.serve.live.rules import Clock, Frame, LoadControl, fastest, handful
from ffn.serve.prediction import Prediction

if TYPE_CHECKING:
    from ffn.serve.predictor import Predictor


class Clips:
    """Runs a network over a clip of each window for which an answer is due.

    Args:
        predictor: The network.
        name: Of the source.
        frames: Number of input frames; None: up to five of ``predictor.counts``.
        step: Seconds of the stream from one answer to the next.
        now: The clock.

    Attributes:
        control: Chooses the number of input frames.
        stride: Frames of the source for one that is kept.
    """

    stride = 1

    def __init__(
        self, predictor: Predictor, name: str, frames: int | None, step: float, now: Clock
    ) -> None:
        self._predictor, self._name, self._step = predictor, name, step
        predictor.reader(frames)  # checks it
        counts = handful(predictor.counts) if frames is None else [frames]
        side = predictor.preprocessing.crop
        window = [Frame(0.0, 0.0, pixels=torch.zeros(3, side, side, dtype=torch.uint8))]
        seconds = {count: fastest(partial(self.run, window, count), now) for count in counts}
        self.control = LoadControl(seconds)

    def run(self, window: Sequence[Frame], count: int | None = None) -> Prediction:
        """The prediction of a clip, sampled as from a window of a file."""
        reader = self._predictor.reader(count or self.control.count)
        clip = reader.plan(self._name, range(len(window)), None)
        chosen = [window[place] for place in clip.indices]
        pixels = torch.stack([frame.pixels for frame in chosen], dim=1)  # (C, T, H, W)
        indices = tuple(frame.number for frame in chosen)
        return self._predictor.predict([replace(clip, pixels=pixels, indices=indices)])[0]

    def runs(self, first: Frame, last: Frame) -> float:
        """Number of runs from one frame to another, at the stride 1."""
        return (last.time - first.time) / self._step


class Steps:
    """Runs a causal network over each frame that is kept, see :func:`ffn.stream`.

    The average over time forgets frames before the window. Arguments and attributes are those of
    :class:`Clips`.
    """

    def __init__(
        self, predictor: Predictor, name: str, frames: int | None, step: float, now: Clock
    ) -> None:
        self._predictor, self._name = predictor, name
        self._normalize = Normalize(predictor.preprocessing)
        self._stream = stream(predictor.model, precision=predictor.stream_precision)
        self._largest, side = predictor.default_frames, predictor.preprocessing.crop
        counts = [self._largest // stride for stride in reversed(self._stream.strides)]
        if frames not in (None, *counts):
            raise ValueError(f"frames is {frames}; a stream runs the networks of {counts} frames")
        seconds, pixels = {}, torch.zeros(3, side, side, dtype=torch.uint8)
        for count in counts if frames is None else [frames]:
            stride = self._largest // count
            self._newest = Frame(0.0, 0.0, part=-1, stride=stride, pixels=pixels)
            seconds[count] = fastest(partial(self._read, self._newest, 1), now) / stride
        self.control = LoadControl(seconds)

    @property
    def stride(self) -> int:
        """Frames of the source for one of the sub-network."""
        return self._largest // self.control.count

    def run(self, window: Sequence[Frame]) -> Prediction:
        """Read the last frame, unless it was read; returns the prediction of all frames so far."""
        started, frame = time.perf_counter(), window[-1]
        if frame is not self._newest:
            self._read(frame, frame.number - window[0].number + frame.stride)
        count = self._largest // frame.stride
        return Prediction(
            path=self._name,
            probabilities=self._predictor.record.label_kind.probabilities(self._logits),
            classes=self._predictor.classes,
            frames=count,
            active=count,
            network=f"stream, {self._predictor.stream_precision}",
            decode_ms=0.0,
            model_ms=1000 * (time.perf_counter() - started),
            multi_label=self._predictor.record.multi_label,
            indices=tuple(frame.number for frame in window),
        )

    def runs(self, first: Frame, last: Frame) -> float:
        """Number of runs from one frame to another, at the stride 1."""
        return last.number - first.number

    def _read(self, frame: Frame, frames: int) -> None:
        """Run the network; so many frames of the source are in the window."""
        if frame.part != self._newest.part:
            self._stream.reset()
        self._newest, self._stream.window, self._stream.stride = frame, frames, frame.stride
        clip = frame.pixels[None, :, None].to(self._predictor.device)
        self._logits = self._stream.step(self._normalize(clip)[0, :, 0]).cpu()
