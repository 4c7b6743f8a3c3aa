"""Live prediction with a causal network: each frame runs through it once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ffn.data import Normalize
from ffn.export import stream
from ffn.serve.live.rules import Frame
from ffn.serve.prediction import Prediction

if TYPE_CHECKING:
    from ffn.serve.predictor import Predictor


class Steps:
    """Runs a causal network over the frames of a source.

    Attributes:
        counts: of the sub-networks that run at a stride, ascending.
    """

    def __init__(self, predictor: Predictor) -> None:
        self._predictor, self._normalize = predictor, Normalize(predictor.preprocessing)
        self._stream = stream(predictor.model, precision=predictor.stream_precision)
        self._largest = predictor.default_frames
        self.counts = [self._largest // stride for stride in reversed(self._stream.strides)]
        self._logits: Tensor | None = None

    def stride(self, count: int) -> int:
        """Frames of the source for one frame of the sub-network of a count."""
        return self._largest // count

    def measure(self, now: Callable[[], float]) -> dict[int, float]:
        """Seconds for a frame of the source, by count."""
        size = self._predictor.preprocessing.crop
        pixels = torch.zeros(3, size, size, dtype=torch.uint8)
        seconds = {}
        for count in self.counts:
            probe, runs = self._stream.copy(), []
            probe.stride = self.stride(count)
            for _ in range(4):  # the first builds the network
                started = now()
                probe.step(self._input(pixels))
                runs.append(now() - started)
            seconds[count] = min(runs[1:]) / probe.stride
        return seconds

    def run(self, frames: Sequence[Frame], window: float) -> None:
        """Read the next frames; the average over time forgets those before a window of frames."""
        self._stream.window = max(1, round(window))
        for frame in frames:
            if frame.is_new_part:
                self._stream.reset()
            self._stream.stride = frame.stride
            self._logits = self._stream.step(self._input(frame.pixels))

    def answer(self, window: Sequence[Frame], name: str, why: str, seconds: float) -> Prediction:
        """What the network says after the last frame; ``seconds`` it took."""
        first, last = window[0].time, window[-1].time
        count = self._largest // window[-1].stride
        return Prediction(
            path=name,
            probabilities=self._predictor.record.label_kind.probabilities(self._logits.cpu()),
            classes=self._predictor.classes,
            frames=count,
            active=count,
            network=f"stream, {self._predictor.stream_precision}",
            decode_ms=0.0,
            model_ms=1000 * seconds,
            multi_label=self._predictor.record.multi_label,
            why=why,
            indices=tuple(frame.number for frame in window),
            start=first,
            end=last + (last - first) / max(1, len(window) - 1),
        )

    def _input(self, pixels: Tensor) -> Tensor:
        clip = pixels[None, :, None].to(self._predictor.device)
        return self._normalize(clip)[0, :, 0]
