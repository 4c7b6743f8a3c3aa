"""Answers of live prediction as text for people, and as JSON lines for programs and logs."""

from __future__ import annotations

import json
import os
import sys
from abc import ABC, abstractmethod
from array import array
from pathlib import Path
from typing import IO, Any

import numpy as np

from ffn.files import printable
from ffn.serve.live.answer import LiveAnswer
from ffn.serve.live.sources import SourceEvent

BLANK = "\r\x1b[K"  # back to the start of the line, which is erased


class LiveReport(ABC):
    """Writes what is found while a stream runs.

    Args:
        output: open for text.
        labels: number of labels per answer.
    """

    def __init__(self, output: IO[str], labels: int) -> None:
        self._output, self._labels = output, labels

    @abstractmethod
    def add(self, answer: LiveAnswer) -> None:
        """Write an answer."""

    @abstractmethod
    def add_event(self, event: SourceEvent) -> None:
        """Write a change of the state of the source."""

    def close(self) -> None:  # noqa: B027  only some write an end
        """Write the end."""


class LiveText(LiveReport):
    """A line per change of the label; on a terminal, the newest answer below.

    Args:
        output, labels: see :class:`LiveReport`.
        status: for the newest answer; nothing is written to it unless it is a terminal.
    """

    def __init__(self, output: IO[str], labels: int, status: IO[str] | None = None) -> None:
        super().__init__(output, labels)
        status = sys.stderr if status is None else status
        self._status = status if status is not None and status.isatty() else None

    def add(self, answer: LiveAnswer) -> None:
        """Write the labels if they change, and the status."""
        if answer.changed:
            labels = answer.labels[: self._labels] or [("no label", float(answer.smoothed.max()))]
            shown = ", ".join(f"{label}  {probability:.0%}" for label, probability in labels)
            self._line(f"{_clock(answer.time)}  {shown}")
        if self._status:
            self._status.write(BLANK + _fit(_status(answer)))
            self._status.flush()

    def add_event(self, event: SourceEvent) -> None:
        """Write what happened."""
        attempt = f", attempt {event.attempt + 1}" if event.attempt else ""
        then = "" if event.wait is None else f"; connecting again in {event.wait:g} s{attempt}"
        self._line(f"{event.state}: {event.message}{then}")

    def close(self) -> None:
        """Erase the status."""
        if self._status:
            self._status.write(BLANK)
            self._status.flush()

    def _line(self, text: str) -> None:
        self.close()
        print(printable(text), file=self._output, flush=True)


class LiveJson(LiveReport):
    """A JSON object per line: an answer, or an event; the keys are in ``docs/live.md``."""

    def add(self, answer: LiveAnswer) -> None:
        """Write the answer, with the memory of the process."""
        self._write(answer.to_dict(self._labels) | {"memory_mib": memory_mib()})

    def add_event(self, event: SourceEvent) -> None:
        """Write the event."""
        values = {"event": event.state, "message": event.message, "attempt": event.attempt}
        self._write(values | {"wait": event.wait})

    def _write(self, value: dict[str, Any]) -> None:
        print(json.dumps(value), file=self._output, flush=True)


LIVE_FORMATS = {"text": LiveText, "json": LiveJson}


class Totals:
    """Sums of a whole prediction, for its last line."""

    def __init__(self) -> None:
        self._latencies = array("f")  # 4 bytes per answer
        self._last: LiveAnswer | None = None

    def add(self, answer: LiveAnswer) -> None:
        """Count an answer."""
        self._latencies.append(answer.latency_ms)
        self._last = answer

    @property
    def answers(self) -> int:
        """Number of answers."""
        return len(self._latencies)

    def __str__(self) -> str:
        if self._last is None:
            return "no answer"
        last = self._last
        half, most, largest = np.percentile(self._latencies, [50, 99, 100])
        return (
            f"{last.prediction.end:.1f} s, {last.received:,} frames, {last.dropped:,} of them "
            f"dropped; {self.answers:,} answers, {last.skipped:,} skipped; latency "
            f"{half:.1f} ms (median), {most:.1f} ms (99 %), {largest:.1f} ms (largest)"
        )


def memory_mib() -> float | None:
    """Memory that the process occupies now, in MiB; None where Linux's /proc is missing."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return round(pages * os.sysconf("SC_PAGESIZE") / 2**20, 3)


def _status(answer: LiveAnswer) -> str:
    label, probability = answer.prediction.top(1)[0]
    part = f", sub-network {answer.prediction.active}" if answer.prediction.active else ""
    return (
        f"{_clock(answer.time)}  {label} {probability:.0%}  {answer.prediction.frames} frames{part}"
        f"  {answer.latency_ms:.0f} ms  dropped {answer.dropped:,}  skipped {answer.skipped:,}"
    )


def _fit(text: str) -> str:
    """A text, shortened to a line of the terminal."""
    try:
        width = os.get_terminal_size(2).columns
    except OSError:
        width = 80
    return printable(text)[: width - 1]


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds: 3725.5 is 1:02:05.5."""
    minutes, rest = divmod(round(seconds, 1), 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02d}:{rest:04.1f}"
