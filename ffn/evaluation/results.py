"""Results of a sweep: a row per frame count, and the predictions for each video."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import Tensor

from ffn.data import Protocol
from ffn.labels import LabelKind

# Short and long names of the metrics, which are in percent.
TITLES = {"top1": "top-1", "top5": "top-5", "mean_class": "per-class", "map": "mAP", "f1": "F1"}
TITLES |= {"wer": "WER", "cer": "CER"}
LONG_TITLES = {"top1": "top-1 accuracy", "map": "mean average precision", "wer": "word errors"}
ERRORS = {"wer", "cer"}  # metrics that are better if they are smaller


@dataclass(frozen=True)
class Row:
    """A network at one frame count.

    Attributes:
        frames: T of the clips.
        subnet: trained count of the sub-network used; None for a plain network.
        metrics: in percent, the main one first: ``top1``, ``top5`` and ``mean_class`` of
            :func:`ffn.evaluation.accuracy`, or ``map`` and ``f1`` of
            :func:`ffn.evaluation.multi_label_accuracy`.
        gmacs: multiply-accumulates of one clip, in 1e9.
        params: parameters of the sub-network used, including shared ones.
        latency_ms: median time of a forward pass of one clip in milliseconds; None if not measured.
        memory_mib: peak GPU memory of the activations of one clip, in MiB; None if not measured.
        videos: number of videos, including ``failed``.
        failed: videos that cannot be decoded, which count as wrong.
    """

    frames: int
    subnet: int | None
    metrics: dict[str, float]
    gmacs: float
    params: int
    latency_ms: float | None
    videos: int
    failed: int
    memory_mib: float | None = None

    @property
    def main(self) -> str:
        """Name of the metric in tables of several networks and in figures."""
        return next(iter(self.metrics))

    @property
    def score(self) -> float:
        """The main metric, in percent."""
        return self.metrics[self.main]

    def to_dict(self) -> dict[str, Any]:
        """The row with its metrics among the other values, as in ``results.json``."""
        columns: dict[str, Any] = {}
        for name, value in asdict(self).items():
            columns |= value if name == "metrics" else {name: value}
        return columns

    @classmethod
    def from_dict(cls, columns: dict[str, Any]) -> Row:
        """The row of :meth:`to_dict`."""
        known = {field.name for field in fields(cls)}
        metrics = {name: value for name, value in columns.items() if name not in known}
        others = {name: value for name, value in columns.items() if name in known}
        return cls(metrics=metrics, **others)


@dataclass(frozen=True)
class Predictions:
    """The logits of all videos; row i of every tensor belongs to video i of the data set.

    Attributes:
        paths: the videos.
        label: (N,), class indices; (N, K) with ones for several labels per video.
        ok: (N,), False where a video cannot be decoded.
        logits: per frame count (N, K) float32; NaN where ``ok`` is False. For several views per
            video, those of their mean probabilities.
        labels: the kind of labels, if it is known.
    """

    paths: tuple[str, ...]
    label: Tensor
    ok: Tensor
    logits: dict[int, Tensor]
    labels: LabelKind | None = None

    @property
    def multi_label(self) -> bool:
        """Whether a video has any number of labels."""
        return self.label.ndim == 2 and self.label.is_floating_point()

    def answers(self, frames: int) -> tuple[Tensor, Tensor]:
        """The class that the network gives each video, and its probability; with one label each.

        Of classes with equal logits it is the first.

        Args:
            frames: one of the tested frame counts.

        Returns:
            The class indices (N,), -1 where a video cannot be decoded, and the probabilities (N,)
            float64, NaN there.

        Raises:
            ValueError: a video has several labels, and no single answer.
        """
        if self.multi_label:
            raise ValueError(
                "the videos have several labels and no single answer; use logits[frames].sigmoid()"
            )
        logits = self.logits[frames]
        return logits.argmax(1).where(self.ok, -1), logits.double().softmax(1).amax(1)


@dataclass(frozen=True)
class Sweep:
    """A network at every tested frame count.

    Attributes:
        name: of the network or its weights, in tables and figures.
        trained_frames: frame counts of its training; None if unknown.
        params: parameters of the whole network, with all trained counts.
        protocol: clips x crops per video, e.g. "2x3"; the cost in a row is that of one of these
            views.
        crop: height and width of the clips, pixels.
        rows: one per frame count, ascending.
        failed: for each video that cannot be decoded, the reason.
        measured: date, device, precision and library versions.
        predictions: on rank 0, if they were kept.
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
        """Forward passes per video; the cost of a video is this many times the cost in a row."""
        return Protocol.parse(self.protocol).views
