"""Sweeps as console table, CSV, JSON and figure; predictions as a safetensors file."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import safetensors.torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from safetensors import safe_open

from ffn.evaluation.plots import save_figure
from ffn.evaluation.results import LONG_TITLES, TITLES, Predictions, Row, Sweep
from ffn.files import atomic_write, write_csv, write_text
from ffn.labels import SEPARATOR

FORMAT = 1  # of the JSON file
_log = logging.getLogger(__name__)


def print_table(sweeps: Sequence[Sweep], console: Console | None = None) -> None:
    """Print one table per network, and one that compares them; trained counts are bold.

    Args:
        sweeps: the networks.
        console: the terminal by default.
    """
    console = console or Console()
    for sweep in sweeps:
        console.print(_table(sweep))
        if sweep.failed:
            share = f"{len(sweep.failed)} of {sweep.rows[0].videos} videos"
            head = f"{share} could not be decoded and count as wrong; the first of them:"
            text = "\n  ".join([head, *sweep.failed[:5]])
            console.print(text, style="yellow", markup=False, soft_wrap=True)
    if len(sweeps) > 1:
        console.print(_comparison(sweeps))


def save_table(sweeps: Sequence[Sweep], folder: str | Path) -> list[Path]:
    """Write ``results.csv``, ``results.json`` and ``results.png``; existing files are replaced.

    Args:
        sweeps: the networks.
        folder: created if it is missing.

    Returns:
        The three files; without the figure, and with a warning, if matplotlib is not installed.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"results.{suffix}" for suffix in ("csv", "json", "png")]
    write_csv(files[0], _csv(sweeps))
    networks = [_network(sweep) for sweep in sweeps]
    text = json.dumps({"format": FORMAT, "networks": networks}, indent=2, ensure_ascii=False)
    write_text(files[1], text + "\n")
    try:
        save_figure(sweeps, files[2])
    except ImportError as error:
        _log.warning("%s; %s is not drawn", error, files[2])
        return files[:2]
    return files


def load_table(path: str | Path) -> list[Sweep]:
    """Read the JSON file of :func:`save_table`, without predictions.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not such a file.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r}, not {FORMAT}")
        return [_sweep(network) for network in content["networks"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a results.json of ffn test ({error}); restore it, or run ffn test "
            "again with --overwrite"
        ) from error


def save_predictions(sweep: Sweep, path: str | Path) -> Path:
    """Write the label and the logits of every video as one safetensors file, or replace it.

    The file holds ``label`` (N,), or (N, K) with several labels per video, ``ok`` (N,) and, per
    frame count, ``logits.4`` (N, K) float32, from which the table follows exactly. Its metadata
    holds ``paths``, a JSON list, and the ``name`` and the ``protocol`` of the sweep.

    Args:
        sweep: made with ``keep_logits=True``, on rank 0.
        path: the file; its folder is created if it is missing.

    Raises:
        ValueError: the sweep has no logits.
    """
    kept = sweep.predictions
    if kept is None:
        raise ValueError("the sweep has no predictions; call sweep(keep_logits=True) on rank 0")
    tensors = {"label": kept.label, "ok": kept.ok}
    tensors |= {f"logits.{frames}": logits for frames, logits in kept.logits.items()}
    about = {"name": sweep.name, "protocol": sweep.protocol, "paths": json.dumps(kept.paths)}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(safetensors.torch.save(tensors, about))
    return path


def load_predictions(path: str | Path) -> Predictions:
    """Read the file of :func:`save_predictions`."""
    with safe_open(path, framework="pt") as file:
        names = file.keys()
        counts = sorted(int(n.removeprefix("logits.")) for n in names if n.startswith("logits."))
        return Predictions(
            paths=tuple(json.loads(file.metadata()["paths"])),
            label=file.get_tensor("label"),
            ok=file.get_tensor("ok"),
            logits={frames: file.get_tensor(f"logits.{frames}") for frames in counts},
        )


def save_prediction_table(
    predictions: Predictions, classes: Sequence[str], path: str | Path
) -> Path:
    """Write the answers as a CSV file: a row per video and frame count, videos in their order.

    ``prediction`` is the class with the largest logit, and ``probability`` its softmax; both are
    empty for a video that cannot be decoded. ``label`` is the index of ``class``. With several
    labels per video, the columns are ``path``, ``frames``, ``labels``, ``predictions`` (the classes
    with a probability of 0.5 or more) and ``probabilities`` (of these, their sigmoid), each
    separated by ``|``. With texts, they are ``path``, ``frames``, ``text`` and ``prediction``.

    Args:
        predictions: of a network.
        classes: class names.
        path: the file; its folder exists.
    """
    if hasattr(predictions.labels, "text"):
        return write_csv(Path(path), _text_answers(predictions))
    if predictions.multi_label:
        return write_csv(Path(path), _multi_label_answers(predictions, classes))
    found = {t: [x.tolist() for x in predictions.answers(t)] for t in predictions.logits}
    rows: list[tuple] = [
        ("path", "frames", "label", "class", "prediction", "probability", "correct")
    ]
    for i, video in enumerate(predictions.paths):
        label = int(predictions.label[i])
        for frames, (answers, probabilities) in found.items():
            answer = answers[i]
            given = ("", "") if answer < 0 else (classes[answer], f"{probabilities[i]:.6g}")
            rows.append((video, frames, label, classes[label], *given, answer == label))
    return write_csv(Path(path), rows)


def _text_answers(predictions: Predictions) -> Iterator[tuple]:
    yield "path", "frames", "text", "prediction"
    kind = predictions.labels
    texts = [kind.text(row) for row in predictions.label.tolist()]
    for frames, logits in predictions.logits.items():
        found = kind.results(logits.nan_to_num(), predictions.ok).tolist()
        for video, text, row in zip(predictions.paths, texts, found, strict=True):
            yield video, frames, text, kind.text(row)


def _multi_label_answers(predictions: Predictions, classes: Sequence[str]) -> list[tuple]:
    rows: list[tuple] = [("path", "frames", "labels", "predictions", "probabilities")]
    for i, video in enumerate(predictions.paths):
        labels = SEPARATOR.join(classes[c] for c in predictions.label[i].nonzero().flatten())
        for frames, logits in predictions.logits.items():
            found = (logits[i] >= 0).nonzero().flatten()  # none of NaN
            names = SEPARATOR.join(classes[c] for c in found)
            shares = SEPARATOR.join(f"{p:.6g}" for p in logits[i, found].double().sigmoid())
            rows.append((video, frames, labels, names, shares))
    return rows


def _csv(sweeps: Sequence[Sweep]) -> Iterator[tuple[object, ...]]:
    """The header, and a row per network and frame count."""
    yield "network", *sweeps[0].rows[0].to_dict(), "protocol"
    for sweep in sweeps:
        for row in sweep.rows:
            yield sweep.name, *row.to_dict().values(), sweep.protocol


def _network(sweep: Sweep) -> dict[str, Any]:
    """The entry of a sweep in the JSON file."""
    entry = asdict(replace(sweep, predictions=None))
    del entry["predictions"]
    return entry | {"rows": [row.to_dict() for row in sweep.rows]}


def _sweep(entry: dict[str, Any]) -> Sweep:
    """A sweep from its entry in the JSON file."""
    trained = entry["trained_frames"]
    lists = {
        "trained_frames": None if trained is None else tuple(trained),
        "crop": tuple(entry["crop"]),
        "rows": tuple(map(Row.from_dict, entry["rows"])),
        "failed": tuple(entry["failed"]),
    }
    return Sweep(**entry | lists)


def _comparison(sweeps: Sequence[Sweep]) -> Table:
    """The console table of the accuracies of several networks."""
    main = sweeps[0].rows[0].main
    table = Table(title=f"{LONG_TITLES.get(main, main)} (%)")
    for column in ("frames", *(escape(sweep.name) for sweep in sweeps)):
        table.add_column(column, justify="right", overflow="fold")
    found = [{row.frames: row.score for row in sweep.rows} for sweep in sweeps]
    for frames in sorted({*chain(*found)}):
        cells = []
        for sweep, scores in zip(sweeps, found, strict=True):
            text = f"{scores[frames]:.2f}" if frames in scores else "-"
            trained = frames in (sweep.trained_frames or ())
            cells.append(f"[bold]{text}[/bold]" if trained else text)
        table.add_row(str(frames), *cells)
    return table


def timing(sweep: Sweep) -> str:
    """How latencies were measured, e.g. "torch, bf16, on NVIDIA H200"."""
    return "{runtime}, {precision}, on {device}".format_map({"runtime": "torch"} | sweep.measured)


def _table(sweep: Sweep) -> Table:
    """The console table of one network."""
    height, width = sweep.crop
    caption = (
        f"{sweep.rows[0].videos} videos; metrics in %; parameters of the sub-network,\n"
        f"{sweep.params / 1e6:.2f} M in total"
    )
    if any(row.latency_ms is not None for row in sweep.rows):
        caption += f"; median latency of one clip, {escape(timing(sweep))}"
    table = Table(
        title=f"{escape(sweep.name)}, {height} x {width} pixels, {sweep.protocol} clips x crops",
        caption=caption,
    )
    several = f" x {sweep.views}" if sweep.views > 1 else ""  # as in papers
    metrics = [TITLES.get(name, name) for name in sweep.rows[0].metrics]
    header = ("frames", "net", *metrics, "GMACs", "M-params", "ms")
    has_memory = any(row.memory_mib is not None for row in sweep.rows)
    for column in (*header, *["MiB"] * has_memory):
        table.add_column(column, justify="right", no_wrap=True)
    for row in sweep.rows:
        table.add_row(
            str(row.frames),
            "-" if row.subnet is None else str(row.subnet),
            *(f"{value:.2f}" for value in row.metrics.values()),
            (f"{row.gmacs:.3g}" if row.gmacs < 10 else f"{row.gmacs:.1f}") + several,
            f"{row.params / 1e6:.2f}",
            "-" if row.latency_ms is None else f"{row.latency_ms:.1f}",
            *([f"{row.memory_mib:.0f}"] if has_memory else []),
            style="bold" if row.frames in (sweep.trained_frames or ()) else None,
        )
    return table
