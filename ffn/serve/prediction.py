"""The answer of a network for a video or a part of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ffn.texts import Characters, align, beam_search


class NotFiniteError(ValueError):
    """The logits of a clip are not finite."""


class Word(NamedTuple):
    """A word of a text, with its time in the video in seconds; None if the video has no times."""

    text: str
    start: float | None
    end: float | None


@dataclass(frozen=True)
class Prediction:
    """The prediction of a network for one video, or for a window of it.

    Attributes:
        path: The video; for a video in memory, what it is, e.g. "40 frames in memory".
        probabilities: Class probabilities (K,), on the CPU. They sum to 1 if a video has one label.
        classes: K class names.
        frames: Number of input frames.
        active: Trained count of the sub-network that was used; None for a plain network.
        network: How the network ran, e.g. "torch, bf16".
        decode_ms: Time to decode and transform the clip, in milliseconds; of windows that were
            read together, each has the same share; of an early exit, of all its stages.
        model_ms: Time of the forward pass, the copy to the device included, but not the building
            of the network in the first call, in milliseconds; of
            clips that ran as one batch, each has the same share; with early exit, of all
            stages that ran.
        multi_label: Whether a video has any number of the classes, with independent probabilities.
        why: Why this number of frames, e.g. "within 30 ms: 24.1 ms" or
            "early exit after 4, 16 frames"; empty if it was given.
        indices: Indices of the input frames in the video.
        start, end: The window in seconds; None for the whole video.
    """

    path: str
    probabilities: Tensor
    classes: tuple[str, ...]
    frames: int
    active: int | None
    network: str
    decode_ms: float
    model_ms: float
    multi_label: bool = False
    why: str = ""
    indices: tuple[int, ...] = ()
    start: float | None = None
    end: float | None = None

    @property
    def words(self) -> tuple[Word, ...]:
        """The words of a text, if the network reads texts."""
        return ()

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """The k most probable labels with their probabilities, in descending order.

        Raises:
            ValueError: k is less than 1.
        """
        if k < 1:
            raise ValueError(f"k is {k}; expected the number of labels, 1 or more")
        values, indices = self.probabilities.topk(min(k, len(self.classes)))
        pairs = zip(indices.tolist(), values.tolist(), strict=True)
        return [(self.classes[i], probability) for i, probability in pairs]

    @property
    def distinct_frames(self) -> int:
        """Number of different input frames: fewer than `frames` if a short video repeats them."""
        return len({*self.indices}) or self.frames

    @property
    def how(self) -> str:
        """Frames, sub-network and form of the network, e.g. "8 frames, sub-network 8, torch"."""
        few = self.distinct_frames < self.frames
        repeated = f", only {self.distinct_frames} of them different" if few else ""
        part = f"sub-network {self.active}" if self.active else "plain network"
        why = f" ({self.why})" if self.why else ""
        return f"{self.frames} frames{why}{repeated}, {part}, {self.network}"

    def to_dict(self, k: int = 5) -> dict[str, Any]:
        """The prediction as JSON values, with the k most probable labels."""
        labels = [{"label": label, "probability": value} for label, value in self.top(k)]
        window = {} if self.start is None else {"start": self.start, "end": self.end}
        return {
            "path": self.path,
            **window,
            "labels": labels,
            "frames": self.frames,
            "distinct_frames": self.distinct_frames,
            "sub_network": self.active,
            "network": self.network,
            "why": self.why,
            "decode_ms": round(self.decode_ms, 3),
            "model_ms": round(self.model_ms, 3),
        }


@dataclass(frozen=True)
class TextPrediction(Prediction):
    """The text of a video; ``probabilities`` (T', K + 1) are those of each step.

    Attributes:
        kind: The kind of labels.
        times: Of the input frames in the video in seconds; empty if it has no times.
    """

    kind: Characters | None = None
    times: tuple[float, ...] = ()

    @cached_property
    def _found(self) -> tuple[list[int], float]:
        return beam_search(self.probabilities.clamp(min=1e-30).log())

    @property
    def text(self) -> str:
        """The most probable text, by beam search."""
        return self.kind.text(self._found[0])

    @property
    def words(self) -> tuple[Word, ...]:
        """The words of the text, from the step of the first token to that of the last."""
        tokens, steps = self._found[0], len(self.probabilities)
        seconds: list[Any] = [None] * steps
        if self.times:
            places = (np.arange(steps) + 0.5) * self.frames / steps - 0.5  # among the frames
            seconds = np.interp(places, range(self.frames), self.times).tolist()
        aligned = align(self.probabilities.clamp(min=1e-30).log(), tokens)
        found = self.kind.words(tokens, aligned)
        return tuple(Word(text, seconds[first], seconds[last]) for text, first, last in found)

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """The text alone, with its probability."""
        return [(self.text, self._found[1])]

    def to_dict(self, k: int = 5) -> dict[str, Any]:
        """The prediction as JSON values, with its words."""
        return super().to_dict(k) | {"words": [word._asdict() for word in self.words]}
