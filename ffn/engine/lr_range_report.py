"""Report of a learning-rate range test: console lines, JSON and figure."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ffn.engine.lr_range import RangeTest, Suggestion
from ffn.evaluation.plots import COLORS, GRAY, new_figure, tidy, write_figure
from ffn.files import write_text

FORMAT = 1  # of the JSON file

_log = logging.getLogger(__name__)


def report_lines(result: RangeTest, suggestion: Suggestion | None, scale: float) -> list[str]:
    """Console lines about a range test.

    Args:
        result: the test.
        suggestion: what was found in it.
        scale: learning rate of a step over ``optim.lr``; not 1 with ``optim.base_batch_size``.
    """
    rates = result.rates
    end = "; the loss has diverged" if result.diverged else ""
    lines = [f"{len(rates)} steps at learning rates from {rates[0]:.2g} to {rates[-1]:.2g}{end}"]
    if not any(map(math.isfinite, result.losses)):
        return [
            *lines,
            "no suggestion: no loss was finite, from the first step on. Check the start weights "
            "and train.precision",
        ]
    if suggestion is None:
        return [
            *lines,
            "no suggestion: the smoothed loss did not fall. Give more --steps, or rates around "
            "those that train; a network without start weights may need epochs before its loss "
            "falls",
        ]
    steepest, lowest = suggestion.steepest, suggestion.lowest
    lines.append(
        f"the smoothed loss falls fastest at {steepest:.2g}, and is lowest "
        f"({suggestion.loss:.3g}) at {lowest:.2g}"
    )
    if lowest == result.smoothed_rates[-1]:
        lines.append("the loss is lowest at the last rate; a larger --high may show more")
    scaled = "" if scale == 1 else f" ({steepest:.2g} to {lowest:.2g} after scaling to the batch)"
    lines.append(
        f"suggestion: optim.lr from {steepest / scale:.2g} to {lowest / scale:.2g}{scaled}, "
        "between these two; one seed and a few steps find the order of magnitude"
    )
    return lines


def save_range_test(
    result: RangeTest, suggestion: Suggestion | None, folder: Path, config: dict[str, Any]
) -> list[Path]:
    """Write ``lr_range.json`` and ``lr_range.png``; existing files are replaced.

    Args:
        result: the test.
        suggestion: what was found in it.
        folder: created if it is missing.
        config: options of the test, as plain values.

    Returns:
        The two files; without the figure, and with a warning, if matplotlib is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"lr_range.{suffix}" for suffix in ("json", "png")]
    content = {
        "format": FORMAT,
        "suggestion": None if suggestion is None else asdict(suggestion),
        "diverged": result.diverged,
        "rates": result.rates,
        "losses": _finite(result.losses),
        "smoothed_rates": result.smoothed_rates,
        "smoothed": _finite(result.smoothed),
        "config": config,
    }
    write_text(files[0], json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    try:
        _save_figure(result, suggestion, files[1])
    except ImportError as error:
        _log.warning("%s; %s is not drawn", error, files[1])
        return files[:1]
    return files


def _finite(values: list[float]) -> list[float | None]:
    """Values for JSON, with null for NaN and infinities."""
    return [value if math.isfinite(value) else None for value in values]


def _save_figure(result: RangeTest, suggestion: Suggestion | None, path: Path) -> None:
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    axes.plot(result.rates, result.losses, color=COLORS[0], alpha=0.3, label="loss")
    axes.plot(
        result.smoothed_rates, result.smoothed, color=COLORS[0], linewidth=1.8, label="smoothed"
    )
    if suggestion is not None:
        for rate, name, style in (
            (suggestion.steepest, "fastest fall", "--"),
            (suggestion.lowest, "lowest", ":"),
        ):
            label = f"{name}: {rate:.2g}"
            axes.axvline(rate, color=GRAY, linestyle=style, linewidth=1.2, label=label)
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("training loss")
    shown = [value for value in result.smoothed if math.isfinite(value)]
    if shown:
        low, high = min(shown), max(shown)
        margin = 0.25 * (high - low) or 0.1
        axes.set_ylim(low - margin, high + margin)  # single losses may be far above
    tidy(axes)
    axes.legend(frameon=False)
    write_figure(figure, path)
