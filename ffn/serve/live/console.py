"""Write the answers of live prediction as text, or as JSON lines for programs and logs."""

from __future__ import annotations

import json
import shutil
import sys
from typing import IO, Any

import numpy as np

from ffn.files import printable
from ffn.serve.live.predictor import LiveAnswer
from ffn.serve.live.streams import SourceEvent

BLANK = "\r\x1b[K"  # back to the start of the line, which is erased


class LiveText:
    """A line per change of the label; if standard error is a terminal, the newest answer there."""

    def __init__(self, file: IO[str], labels: int) -> None:
        self._file, self._labels = file, labels
        self._status = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None

    def add(self, answer: LiveAnswer) -> None:
        """Write the labels if they change, and the status."""
        if answer.changed:
            labels = answer.labels[: self._labels] or [("no label", float(answer.smoothed.max()))]
            shown = ", ".join(f"{label}  {probability:.0%}" for label, probability in labels)
            self._line(f"{_time(answer.time)}  {shown}")
        label, probability = answer.prediction.top(1)[0]
        self._show(
            f"{_time(answer.time)}  {label} {probability:.0%}  {answer.prediction.frames} frames  "
            f"{answer.latency_ms:.0f} ms  dropped {answer.dropped:,}  skipped {answer.skipped:,}"
        )

    def add_event(self, event: SourceEvent) -> None:
        """Write what happened."""
        attempt = f", attempt {event.attempt + 1}" if event.attempt else ""
        then = "" if event.wait is None else f"; connecting again in {event.wait:g} s{attempt}"
        self._line(f"{event.state}: {event.message}{then}")

    def close(self) -> None:
        """Erase the status."""
        self._show("")

    def _line(self, text: str) -> None:
        self._show("")
        print(printable(text), file=self._file, flush=True)

    def _show(self, status: str) -> None:
        if self._status is not None:
            width = shutil.get_terminal_size().columns - 1
            print(BLANK + printable(status)[:width], end="", file=self._status, flush=True)


class LiveJson:
    """A JSON object per line: an answer or an event."""

    def __init__(self, file: IO[str], labels: int) -> None:
        self._file, self._labels = file, labels

    def add(self, answer: LiveAnswer) -> None:
        """Write the answer."""
        self._write(answer.to_dict(self._labels))

    def add_event(self, event: SourceEvent) -> None:
        """Write the event."""
        values = {"event": event.state, "message": event.message, "attempt": event.attempt}
        self._write(values | {"wait": event.wait})

    def close(self) -> None:
        """Write nothing."""

    def _write(self, value: dict[str, Any]) -> None:
        print(json.dumps(value), file=self._file, flush=True)


LIVE_OUTPUTS: dict[str, type[LiveText | LiveJson]] = {"text": LiveText, "json": LiveJson}


def totals(last: LiveAnswer, latencies: list[float]) -> str:
    """A line about a whole prediction: its last answer, and the latencies of all in ms."""
    half, most, largest = np.percentile(latencies, [50, 99, 100])
    return (
        f"{last.prediction.end:.1f} s, {last.received:,} frames, {last.dropped:,} of them dropped; "
        f"{len(latencies):,} answers, {last.skipped:,} skipped; latency {half:.1f} ms (median), "
        f"{most:.1f} ms (99 %), {largest:.1f} ms (largest)"
    )


def _time(seconds: float) -> str:
    """Hours, minutes and seconds: 3725.5 is 1:02:05.5."""
    minutes, rest = divmod(round(seconds, 1), 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02d}:{rest:04.1f}"
