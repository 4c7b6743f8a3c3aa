"""Write predictions as text, JSON lines or CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from typing import IO

from ffn.files import printable
from ffn.serve.prediction import Prediction
from ffn.serve.windows import Segment


class TextOutput:
    """Writes a few lines per video to a text file, with so many labels per video."""

    def __init__(self, file: IO[str], labels: int) -> None:
        self._file, self._labels = file, labels

    def add(self, prediction: Prediction) -> None:
        """Write how the network ran, and the most probable labels of a video."""
        several = "; several labels, independent probabilities" if prediction.multi_label else ""
        self._write(
            f"{prediction.path}: {prediction.how}, decode {prediction.decode_ms:.1f} ms, model "
            f"{prediction.model_ms:.1f} ms{several}"
        )
        for label, probability in prediction.top(self._labels):
            self._write(f"  {probability:7.2%}  {label}")

    def add_windows(self, windows: Sequence[Prediction], segments: Sequence[Segment]) -> None:
        """Write the segments that the windows of a long video were joined to."""
        first, count = windows[0], len(windows)
        decode = sum(window.decode_ms for window in windows)
        model = sum(window.model_ms for window in windows)
        self._write(
            f"{first.path}: {count} window{'s' * (count > 1)} of {first.end - first.start:.3g} s, "
            f"{first.how}, decode {decode:.0f} ms, model {model:.0f} ms"
        )
        for one in segments:
            times = f"{one.start:8.2f} - {one.end:8.2f} s"
            self._write(f"  {times}  {one.probability:7.2%}  {one.label}")

    def add_error(self, path: str, cause: str) -> None:
        """Write nothing: the message is on standard error."""

    def _write(self, line: str) -> None:
        print(printable(line), file=self._file)


class JsonOutput(TextOutput):
    """Writes a JSON object per line and video."""

    def add(self, prediction: Prediction) -> None:
        """Write ``path``, ``labels`` and how the network ran."""
        self._write(json.dumps(prediction.to_dict(self._labels)))

    def add_windows(self, windows: Sequence[Prediction], segments: Sequence[Segment]) -> None:
        """Write ``path``, ``segments`` and ``windows``."""
        shown = [window.to_dict(self._labels) for window in windows]
        for window in shown:
            del window["path"]
        joined = [segment.to_dict() for segment in segments]
        value = {"path": windows[0].path, "segments": joined, "windows": shown}
        self._write(json.dumps(value))

    def add_error(self, path: str, cause: str) -> None:
        """Write ``path`` and ``error``."""
        self._write(json.dumps({"path": path, "error": cause}))


class CsvOutput(TextOutput):
    """Writes a table with a row per video, or per window; errors are in the last column."""

    def __init__(self, file: IO[str], labels: int) -> None:
        super().__init__(file, labels)
        self._write_row(columns(labels))

    def add(self, prediction: Prediction) -> None:
        """Write a row."""
        self._write_row(prediction_row(prediction, self._labels))

    def add_windows(self, windows: Sequence[Prediction], segments: Sequence[Segment]) -> None:
        """Write a row per window."""
        for window in windows:
            self.add(window)

    def add_error(self, path: str, cause: str) -> None:
        """Write a row whose last cell has the cause."""
        self._write_row(error_row(path, cause, self._labels))

    def _write_row(self, row: Sequence[object]) -> None:
        cells = [printable(x) if isinstance(x, str) else x for x in row]
        csv.writer(self._file, lineterminator="\n").writerow(cells)


OUTPUTS: dict[str, type[TextOutput]] = {"text": TextOutput, "json": JsonOutput, "csv": CsvOutput}


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
