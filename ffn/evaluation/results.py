"""What a test finds: a row per frame count, and the answers behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ffn.data import Protocol


@dataclass(frozen=True)
class Row:
    """A network at one frame count.

    Attributes:
        frames: T of the clips.
        subnet: the trained count whose sub-network answered; None for a plain network.
        top1: accuracy in percent.
        top5: in percent; see :func:`ffn.evaluation.accuracy`.
        mean_class: in percent, averaged over classes.
        gmacs: multiply-accumulates of one clip, in 1e9.
        params: parameters of the sub-network that answered, shared ones included.
        latency_ms: median time of a forward of one clip, in milliseconds; None if not measured.
        videos: how many videos counted.
        failed: how many of them could not be decoded (and counted as wrong).
    """

    frames: int
    subnet: int | None
    top1: float
    top5: float
    mean_class: float
    gmacs: float
    params: int
    latency_ms: float | None
    videos: int
    failed: int


@dataclass(frozen=True)
class Predictions:
    """The answers behind a sweep, row i of every tensor for video i of the data set.

    Attributes:
        paths: the videos.
        label: (N,), their classes.
        ok: (N,), False where a video could not be decoded.
        logits: per frame count (N, K) float32; NaN where ``ok`` is False. Of several views per
            video, the logarithm of their mean probabilities.
    """

    paths: tuple[str, ...]
    label: Tensor
    ok: Tensor
    logits: dict[int, Tensor]


@dataclass(frozen=True)
class Sweep:
    """A network at every tested frame count.

    Attributes:
        name: of the network or its weights, in tables and figures.
        trained_frames: what it was trained at; None if unknown.
        params: parameters of the whole network, all trained counts together.
        protocol: clips x crops that each video was looked at, as "2x3"; the cost of a row is that
            of one of these views.
        crop: height and width of the clips, pixels.
        rows: one per frame count, ascending.
        failed: the videos that could not be decoded, each with the reason.
        measured: when, on which device, in which precision, with which versions.
        predictions: on rank 0, if they were asked for.
    """

    name: str
    trained_frames: tuple[int, ...] | None
    params: int
    crop: tuple[int, int]
    rows: tuple[Row, ...]
    failed: tuple[str, ...]
    measured: dict[str, Any]
    protocol: str = "1x1"
    predictions: Predictions | None = None

    @property
    def views(self) -> int:
        """Forwards per video: the cost of a video is this many times that of a row."""
        return Protocol.parse(self.protocol).views
