"""Print predictions as text or JSON lines, and the rows of a table of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from ffn.files import printable, without_password
from ffn.serve.prediction import Prediction
from ffn.serve.windows import Segment


class Output:
    """Prints predictions.

    Args:
        form: "text": a few lines per video; "json": an object per line and video.
        labels: Most probable labels of a video.
    """

    def __init__(self, form: str, labels: int) -> None:
        self._is_json, self._labels = form == "json", labels

    def add(self, prediction: Prediction) -> None:
        """Print how the network ran, and the most probable labels of a video."""
        if self._is_json:
            _print(json.dumps(prediction.to_dict(self._labels)))
            return
        kind = "; several labels, independent probabilities" if prediction.multi_label else ""
        _print(
            f"{prediction.path}: {prediction.how}, decode {prediction.decode_ms:.1f} ms, model "
            f"{prediction.model_ms:.1f} ms{kind}"
        )
        for label, probability in prediction.top(self._labels):
            _print(f"  {probability:7.2%}  {label}")
        for word in prediction.words:
            times = "" if word.start is None else f"{word.start:8.2f} - {word.end:8.2f} s  "
            _print(f"  {times}{word.text}")

    def add_windows(self, windows: Sequence[Prediction], segments: Sequence[Segment]) -> None:
        """Print the segments of a long video; as JSON, also the windows that they come from."""
        first, count = windows[0], len(windows)
        if self._is_json:
            joined = [asdict(segment) for segment in segments]
            shown = [window.to_dict(self._labels) for window in windows]
            path = {window.pop("path") for window in shown}.pop()
            _print(json.dumps({"path": path, "segments": joined, "windows": shown}))
            return
        decode = sum(window.decode_ms for window in windows)
        model = sum(window.model_ms for window in windows)
        _print(
            f"{first.path}: {count} window{'s' * (count > 1)} of {first.end - first.start:.3g} s, "
            f"{first.how}, decode {decode:.0f} ms, model {model:.0f} ms"
        )
        for one in segments:
            times = f"{one.start:8.2f} - {one.end:8.2f} s"
            _print(f"  {times}  {one.probability:7.2%}  {one.label}")

    def add_error(self, path: str, cause: str) -> None:
        """Print why there is no prediction; nothing as text, since standard error has it."""
        if self._is_json:
            _print(json.dumps({"path": without_password(path), "error": cause}))


def _print(line: str) -> None:
    print(printable(line))


def columns(labels: int) -> list[str]:
    """Names of the columns of a table with so many labels per video."""
    ranks = ["", *(f"_{rank}" for rank in range(2, labels + 1))]
    pairs = [name + rank for rank in ranks for name in ("label", "probability")]
    return ["path", "start", "end", *pairs, "frames", "distinct_frames", "sub_network", "error"]


def cells(answer: Prediction | str, labels: int) -> list[object]:
    """The cells of an answer after path, start and end; of a cause of an error, only its last."""
    if isinstance(answer, str):
        return [*[None] * (2 * labels + 3), answer]
    found = [cell for pair in answer.top(labels) for cell in pair]
    found += [None] * (2 * labels - len(found))  # fewer classes
    return [*found, answer.frames, answer.distinct_frames, answer.active, None]
