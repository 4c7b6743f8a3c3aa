"""Write predictions as text, JSON lines or CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from typing import IO

from ffn.files import printable
from ffn.serve.prediction import Prediction
from ffn.serve.windows import Segment


class Output:
    """Writes predictions to a text file.

    Args:
        form: "text": a few lines per video; "json": an object per line and video; "csv": a table
            with a row per video, or per window.
        file: Where they are written.
        labels: Most probable labels of a video.
    """

    def __init__(self, form: str, file: IO[str], labels: int) -> None:
        self._form, self._file, self._labels = form, file, labels
        if form == "csv":
            self._write_row(columns(labels))

    def add(self, prediction: Prediction) -> None:
        """Write how the network ran, and the most probable labels of a video."""
        if self._form == "json":
            self._write(json.dumps(prediction.to_dict(self._labels)))
        elif self._form == "csv":
            self._write_row(prediction_row(prediction, self._labels))
        else:
            kind = "; several labels, independent probabilities" if prediction.multi_label else ""
            self._write(
                f"{prediction.path}: {prediction.how}, decode {prediction.decode_ms:.1f} ms, model "
                f"{prediction.model_ms:.1f} ms{kind}"
            )
            for label, probability in prediction.top(self._labels):
                self._write(f"  {probability:7.2%}  {label}")

    def add_windows(self, windows: Sequence[Prediction], segments: Sequence[Segment]) -> None:
        """Write the windows of a long video, and the segments that they were joined to."""
        if self._form == "json":
            joined = [segment.to_dict() for segment in segments]
            shown = [window.to_dict(self._labels) for window in windows]
            path = {window.pop("path") for window in shown}.pop()
            self._write(json.dumps({"path": path, "segments": joined, "windows": shown}))
        elif self._form == "csv":
            for window in windows:
                self.add(window)
        else:
            self._add_segments(windows, segments)

    def add_error(self, path: str, cause: str) -> None:
        """Write why there is no prediction; nothing as text, since standard error has it."""
        if self._form == "json":
            self._write(json.dumps({"path": path, "error": cause}))
        elif self._form == "csv":
            self._write_row(error_row(path, cause, self._labels))

    def _add_segments(self, windows: Sequence[Prediction], segments: Sequence[Segment]) -> None:
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

    def _write(self, line: str) -> None:
        print(printable(line), file=self._file)

    def _write_row(self, row: Sequence[object]) -> None:
        cells = [printable(x) if isinstance(x, str) else x for x in row]
        csv.writer(self._file, lineterminator="\n").writerow(cells)


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
