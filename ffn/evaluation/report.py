"""Sweeps on screen, as CSV, JSON and figure, and the predictions behind them as a file."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

import safetensors.torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from safetensors import safe_open

from ffn.evaluation.plots import save_figure
from ffn.evaluation.results import Predictions, Row, Sweep

FORMAT = 1  # of the JSON file


def print_table(sweeps: Sequence[Sweep], console: Console | None = None) -> None:
    """Print one table per network; rows of trained counts are bold.

    Args:
        sweeps: the networks.
        console: where to print; the terminal by default.
    """
    console = console or Console()
    for sweep in sweeps:
        console.print(_table(sweep))
        if sweep.failed:
            more = len(sweep.failed) - 5
            reasons = [*sweep.failed[:5], *([f"... and {more} more"] if more > 0 else [])]
            share = f"{len(sweep.failed)} of {sweep.rows[0].videos} videos"
            text = "\n  ".join([f"{share} could not be decoded and count as wrong:", *reasons])
            console.print(text, style="yellow", markup=False, soft_wrap=True)


def save_table(sweeps: Sequence[Sweep], folder: str | Path, stem: str = "results") -> list[Path]:
    """Write ``results.csv``, ``results.json`` and ``results.png``; replaces what is there.

    Args:
        sweeps: the networks.
        folder: made if missing.
        stem: the files' name.

    Returns:
        The three files.

    Raises:
        ImportError: matplotlib is missing; the other two files are written by then.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{stem}.{suffix}" for suffix in ("csv", "json", "png")]

    with files[0].open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(["network", *(field.name for field in fields(Row)), "protocol"])
        writer.writerows(
            [sweep.name, *asdict(row).values(), sweep.protocol]
            for sweep in sweeps
            for row in sweep.rows
        )

    networks = [asdict(replace(sweep, predictions=None)) for sweep in sweeps]
    for network in networks:
        del network["predictions"]
    text = json.dumps({"format": FORMAT, "networks": networks}, indent=2, ensure_ascii=False)
    files[1].write_text(text + "\n", encoding="utf-8")

    save_figure(sweeps, files[2])
    return files


def load_table(path: str | Path) -> list[Sweep]:
    """Read the JSON file of :func:`save_table`, without predictions.

    Raises:
        ValueError: it is of another format.
    """
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    if content.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {content.get('format')!r}; expected {FORMAT}, a file that "
            "tools/test.py wrote"
        )
    sweeps = []
    for network in content["networks"]:
        trained = network["trained_frames"]
        network |= {
            "trained_frames": None if trained is None else tuple(trained),
            "crop": tuple(network["crop"]),
            "rows": tuple(Row(**row) for row in network["rows"]),
            "failed": tuple(network["failed"]),
        }
        sweeps.append(Sweep(**network))
    return sweeps


def save_predictions(sweep: Sweep, path: str | Path) -> Path:
    """Write every video's label and logits per frame count as one safetensors file.

    Safetensors loads in any language without running code. It holds ``label`` (N,), ``ok`` (N,),
    ``logits.4`` (N, K) float32 per frame count (the table can be computed from it exactly), and in
    its metadata ``paths``, a JSON list, and the network's ``name``.

    Args:
        sweep: made with ``keep_logits=True``, on rank 0.
        path: the file to write.

    Raises:
        ValueError: the sweep kept no logits.
    """
    kept = sweep.predictions
    if kept is None:
        raise ValueError("the sweep kept no predictions; sweep with keep_logits=True, on rank 0")
    tensors = {"label": kept.label, "ok": kept.ok}
    tensors |= {f"logits.{frames}": logits for frames, logits in kept.logits.items()}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"name": sweep.name, "paths": json.dumps(kept.paths)}
    path.write_bytes(safetensors.torch.save(tensors, metadata))
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


def _table(sweep: Sweep) -> Table:
    """One network as a table for the screen."""
    height, width = sweep.crop
    caption = (
        f"{sweep.rows[0].videos} videos; accuracies in %; parameters of the sub-network,\n"
        f"{sweep.params / 1e6:.2f} M in all"
    )
    if any(row.latency_ms is not None for row in sweep.rows):
        precision, device = sweep.measured["precision"], escape(sweep.measured["device"])
        caption += f"; median latency of one clip, {precision} on {device}"
    table = Table(
        title=f"{escape(sweep.name)}, {height} x {width} pixels, {sweep.protocol} clips x crops",
        caption=caption,
    )
    several = f" x {sweep.views}" if sweep.views > 1 else ""  # as papers do
    header = "frames sub-net top-1 top-5 per-class GMACs M-params ms"
    for column in header.split():
        table.add_column(column, justify="right", no_wrap=True)
    for row in sweep.rows:
        table.add_row(
            str(row.frames),
            "-" if row.subnet is None else str(row.subnet),
            f"{row.top1:.2f}",
            f"{row.top5:.2f}",
            f"{row.mean_class:.2f}",
            (f"{row.gmacs:.3g}" if row.gmacs < 10 else f"{row.gmacs:.1f}") + several,
            f"{row.params / 1e6:.2f}",
            "-" if row.latency_ms is None else f"{row.latency_ms:.1f}",
            style="bold" if row.frames in (sweep.trained_frames or ()) else None,
        )
    return table
