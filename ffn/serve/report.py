"""Predictions as text for people, and as JSON lines or CSV for programs."""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import IO, Any

from ffn.files import printable
from ffn.serve.prediction import Prediction
from ffn.serve.windows import Segment


class Report(ABC):
    """Writes what was found for each video.

    Args:
        output: open for text.
        labels: number of labels per video.
    """

    def __init__(self, output: IO[str], labels: int) -> None:
        self._output, self._labels = output, labels

    @abstractmethod
    def add(self, prediction: Prediction) -> None:
        """Write the prediction of a video."""

    @abstractmethod
    def add_windows(self, windows: Sequence[Prediction], segments: Sequence[Segment]) -> None:
        """Write the windows of a long video, and the segments that they were joined to."""

    @abstractmethod
    def add_error(self, path: str, cause: str) -> None:
        """Write that a video cannot be read."""


class TextReport(Report):
    """A few lines per video."""

    def add(self, prediction: Prediction) -> None:
        """Write how the network ran, and the most probable labels."""
        several = "; several labels, independent probabilities" if prediction.multi_label else ""
        self._write(
            f"{prediction.path}: {prediction.how}, decode {prediction.decode_ms:.1f} ms, model "
            f"{prediction.model_ms:.1f} ms{several}"
        )
        for label, probability in prediction.top(self._labels):
            self._write(f"  {probability:7.2%}  {label}")

    def add_windows(self, windows: Sequence[Prediction], segments: Sequence[Segment]) -> None:
        """Write the segments."""
        first = windows[0]
        decode = sum(window.decode_ms for window in windows)
        model = sum(window.model_ms for window in windows)
        plural = "s" if len(windows) > 1 else ""
        self._write(
            f"{first.path}: {len(windows)} window{plural} of {first.end - first.start:.3g} s, "
            f"{first.how}, decode {decode:.0f} ms, model {model:.0f} ms"
        )
        for segment in segments:
            self._write(
                f"  {segment.start:8.2f} - {segment.end:8.2f} s  {segment.probability:7.2%}  "
                f"{segment.label}"
            )

    def add_error(self, path: str, cause: str) -> None:
        """Write nothing: the message is on standard error."""

    def _write(self, line: str) -> None:
        print(printable(line), file=self._output)


class JsonReport(Report):
    """A JSON object per line and video; the keys are in ``docs/predict.md``."""

    def add(self, prediction: Prediction) -> None:
        """Write ``path``, ``labels`` and how the network ran."""
        self._write(prediction.to_dict(self._labels))

    def add_windows(self, windows: Sequence[Prediction], segments: Sequence[Segment]) -> None:
        """Write ``path``, ``segments`` and ``windows``."""
        shown = [window.to_dict(self._labels) for window in windows]
        path = shown[0]["path"]
        for window in shown:
            del window["path"]
        joined = [segment.to_dict() for segment in segments]
        self._write({"path": path, "segments": joined, "windows": shown})

    def add_error(self, path: str, cause: str) -> None:
        """Write ``path`` and ``error``."""
        self._write({"path": path, "error": cause})

    def _write(self, value: dict[str, Any]) -> None:
        print(json.dumps(value), file=self._output)


class CsvReport(Report):
    """A table with a row per video, or per window."""

    def __init__(self, output: IO[str], labels: int) -> None:
        super().__init__(output, labels)
        self._rows = csv.writer(output, lineterminator="\n")
        self._rows.writerow(columns(labels))

    def add(self, prediction: Prediction) -> None:
        """Write a row."""
        self._write(prediction_row(prediction, self._labels))

    def add_windows(self, windows: Sequence[Prediction], segments: Sequence[Segment]) -> None:
        """Write a row per window."""
        for window in windows:
            self.add(window)

    def add_error(self, path: str, cause: str) -> None:
        """Write a row whose last cell has the cause."""
        self._write(error_row(path, cause, self._labels))

    def _write(self, row: Sequence[object]) -> None:
        self._rows.writerow([printable(x) if isinstance(x, str) else x for x in row])


FORMATS = {"text": TextReport, "json": JsonReport, "csv": CsvReport}


def columns(labels: int) -> list[str]:
    """Names of the columns of a table with so many labels per video."""
    ranks = ["", *(f"_{rank}" for rank in range(2, labels + 1))]
    pairs = [name + rank for rank in ranks for name in ("label", "probability")]
    return ["path", "start", "end", *pairs, "frames", "sub_network", "error"]


def prediction_row(prediction: Prediction, labels: int) -> list[object]:
    """The cells of a prediction, in the order of :func:`columns`; None is an empty cell."""
    found = [cell for pair in prediction.top(labels) for cell in pair]
    found += [None] * (2 * labels - len(found))  # fewer classes
    where = [prediction.path, prediction.start, prediction.end]
    return [*where, *found, prediction.frames, prediction.active, None]


def error_row(
    path: str, cause: str, labels: int, start: float | None = None, end: float | None = None
) -> list[object]:
    """The cells of a video that cannot be read."""
    return [path, start, end, *[None] * (2 * labels + 2), cause]
