"""Results of a sweep: a row per frame count, and the predictions for each video."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ffn.data import Protocol


class Measured:
    """The metrics of a row.

    Attributes:
        main: name of the metric in tables of several networks and in figures, in percent.
        title: of this metric.
        long_title: of this metric.
        measures: title and name of each metric.
    """

    main: ClassVar[str]
    title: ClassVar[str]
    long_title: ClassVar[str]
    measures: ClassVar[dict[str, str]]

    @property
    def score(self) -> float:
        """The main metric, in percent."""
        return getattr(self, self.main)

    @property
    def metrics(self) -> dict[str, float]:
        """All metrics by name, in percent."""
        return {name: getattr(self, name) for name in self.measures.values()}


@dataclass(frozen=True)
class Row(Measured):
    """A network at one frame count.

    Attributes:
        frames: T of the clips.
        subnet: trained count of the sub-network used; None for a plain network.
        top1: accuracy in percent.
        top5: in percent; see :func:`ffn.evaluation.accuracy`.
        mean_class: in percent, averaged over classes.
        gmacs: multiply-accumulates of one clip, in 1e9.
        params: parameters of the sub-network used, including shared ones.
        latency_ms: median time of a forward pass of one clip in milliseconds; None if not measured.
        videos: number of videos, including ``failed``.
        failed: videos that cannot be decoded, which count as wrong.
    """

    main: ClassVar[str] = "top1"
    title: ClassVar[str] = "top-1"
    long_title: ClassVar[str] = "top-1 accuracy"
    measures: ClassVar[dict[str, str]] = {
        "top-1": "top1",
        "top-5": "top5",
        "per-class": "mean_class",
    }

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

    @property
    def top1_readable(self) -> float:
        """Top-1 in percent of the videos that can be decoded; NaN if there is none."""
        readable = self.videos - self.failed
        return self.top1 * self.videos / readable if readable else float("nan")


@dataclass(frozen=True)
class MultiLabelRow(Measured):
    """A network at one frame count, tested on videos with several labels.

    Attributes:
        frames: T of the clips.
        subnet: see :class:`Row`.
        map: mean average precision in percent; see :func:`ffn.evaluation.multi_label_accuracy`.
        f1: in percent.
        gmacs: see :class:`Row`.
        params: see :class:`Row`.
        latency_ms: see :class:`Row`.
        videos: number of videos, including ``failed``.
        failed: videos that cannot be decoded, whose labels count as not found.
    """

    main: ClassVar[str] = "map"
    title: ClassVar[str] = "mAP"
    long_title: ClassVar[str] = "mean average precision"
    measures: ClassVar[dict[str, str]] = {"mAP": "map", "F1": "f1"}

    frames: int
    subnet: int | None
    map: float
    f1: float
    gmacs: float
    params: int
    latency_ms: float | None
    videos: int
    failed: int


@dataclass(frozen=True)
class Predictions:
    """The logits of all videos; row i of every tensor belongs to video i of the data set.

    Attributes:
        paths: the videos.
        label: (N,), class indices; (N, K) with ones for several labels per video.
        ok: (N,), False where a video cannot be decoded.
        logits: per frame count (N, K) float32; NaN where ``ok`` is False. For several views per
            video, those of their mean probabilities.
    """

    paths: tuple[str, ...]
    label: Tensor
    ok: Tensor
    logits: dict[int, Tensor]

    @property
    def multi_label(self) -> bool:
        """Whether a video has any number of labels."""
        return self.label.ndim == 2

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
    rows: tuple[Row, ...] | tuple[MultiLabelRow, ...]
    failed: tuple[str, ...]
    measured: dict[str, Any]
    protocol: str = "1x1"
    predictions: Predictions | None = None

    @property
    def views(self) -> int:
        """Forward passes per video; the cost of a video is this many times the cost in a row."""
        return Protocol.parse(self.protocol).views
