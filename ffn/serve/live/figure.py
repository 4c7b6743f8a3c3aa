"""Figure of a log of live prediction: latency, number of frames, and memory over time."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffn.evaluation.plots import COLORS, GRAY, new_figure, tidy, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Line = Mapping[str, Any]


def read_live_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log: answers and events. A last line that is not complete is left out.

    Raises:
        OSError: the file cannot be read.
        ValueError: it has another content.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    found = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            if not ("event" in entry or {"time", "frames", "latency_ms"} <= entry.keys()):
                raise ValueError
            found.append(entry)
        except (ValueError, TypeError, AttributeError):
            if number == len(lines) and found:
                break
            raise ValueError(
                f"{path}:{number}: no line of a log of live prediction; expected what "
                "`ffn live --log` wrote"
            ) from None
    return found


def save_live_figure(log: Sequence[Line], path: str | Path) -> Path:
    """Draw latency, number of frames, missed frames and answers, and memory into a file.

    Args:
        log: answers and events, see :func:`read_live_log`.
        path: ``.png``, or any format of matplotlib.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there is no answer, or matplotlib does not support the format.
    """
    answers = [entry for entry in log if "event" not in entry]
    if not answers:
        raise ValueError("the log has no answer, so there is nothing to draw")
    long = answers[-1]["time"] > 300
    x = [entry["time"] / (60 if long else 1) for entry in answers]
    figure = new_figure(8.0, 8.0)
    latency, frames, missed, memory = figure.subplots(4, 1, sharex=True)
    _draw_latency(latency, x, answers)
    _title(frames, "frames of the clip")
    frames.step(x, [entry["frames"] for entry in answers], where="post", color=COLORS[0])
    frames.set_yticks(sorted({entry["frames"] for entry in answers}))
    frames.set_ylim(bottom=0)
    _title(missed, "sum of missed")
    for key, color in (("skipped", COLORS[1]), ("dropped", COLORS[0])):
        name = {"skipped": "answers skipped", "dropped": "frames dropped"}[key]
        missed.plot(x, [entry[key] for entry in answers], color=color, label=name)
    most = max(entry[key] for entry in answers for key in ("skipped", "dropped"))
    _from_zero(missed, max(1, 1.05 * most))
    missed.yaxis.get_major_locator().set_params(integer=True)
    missed.legend(frameon=False, fontsize=8.5)
    _title(memory, "memory (MiB)")
    if all(entry.get("memory_mib") for entry in answers):
        values = [entry["memory_mib"] for entry in answers]
        memory.plot(x, values, color=COLORS[0], label="process")
    kept = [entry["kept_bytes"] / 2**20 for entry in answers]
    memory.plot(x, kept, color=COLORS[1], label="frames of the window")
    _from_zero(memory, memory.get_ylim()[1])
    memory.legend(frameon=False, fontsize=8.5)
    memory.set_xlabel(f"time of the stream ({'min' if long else 's'})")
    return write_figure(figure, path)


def _draw_latency(axes: Axes, x: Sequence[float], answers: Sequence[Line]) -> None:
    _title(axes, "latency (ms)")
    values = [entry["latency_ms"] for entry in answers]
    few = len(values) < 500
    style = {"markersize": 6 if few else 2, "alpha": 1 if few else 0.5, "rasterized": True}
    axes.plot(x, values, ".", color=COLORS[0], **style)
    axes.set_ylim(0, 1.05 * max(values))
    interval = [entry["interval_ms"] or float("nan") for entry in answers]
    known = [entry["interval_ms"] for entry in answers if entry["interval_ms"]]
    label = "until the next answer is due"
    if known:  # the line is beyond the axes where answers are fast
        label += f": {statistics.median(known):.0f} ms in the median"
    axes.plot(x, interval, color=GRAY, linewidth=1, label=label)
    axes.legend(frameon=False, fontsize=8.5)


def _from_zero(axes: Axes, top: float) -> None:
    """Axes from slightly below 0, so that a line at 0 is seen."""
    axes.set_ylim(-0.03 * top, top)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=10, loc="left")
    tidy(axes)
