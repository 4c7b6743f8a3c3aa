"""``tools/predict.py LIST --output TABLE``: predict the videos of a list, in all processes."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ffn.cli.arguments import (
    find_device,
    load_imports,
    non_negative_int,
    positive_int,
    positive_number,
    refuse_existing,
)
from ffn.cli.program import fail_once, prefix
from ffn.files import make_writable

if TYPE_CHECKING:
    import torch

    from ffn.engine.distributed import World
    from ffn.serve import Predictor

DEFAULTS = {
    "root": None,
    "batch_size": 16,
    "workers": None,
    "timeout": 600.0,
}
MAX_DEFAULT_WORKERS = 8


def predict_list(given: argparse.Namespace) -> int:
    """Predict a list of videos into a table, in all processes; returns the exit status."""
    from ffn.data.workers import check_timeout

    try:
        _refuse(given)
        if given.timeout is not None:
            check_timeout(given.timeout)
        refuse_existing(given.output, given.overwrite, inputs=given.files)
        make_writable(given.output.parent)
        load_imports(given)
        device = find_device(given.device)
    except (ValueError, OSError, ImportError) as error:
        return fail_once("predict", error)

    from ffn.engine.failures import run_command

    return run_command(prefix("predict"), partial(_predict, given), device=device)


def _refuse(given: argparse.Namespace) -> None:
    """Raise ValueError for options that would do nothing."""
    if len(given.files) > 1:
        raise ValueError(f"--output is for one list of videos; got {len(given.files)} files")
    for option in ("early_exit", "save", "window", "step", "fps"):
        if getattr(given, option) is not None:
            raise ValueError(f"--{option} is not for lists of videos; leave out --output")
    if given.frames == "early_exit":
        raise ValueError("--frames early_exit is not for lists of videos; leave out --output")
    for option in ("heat_map", "label", "layer"):
        if getattr(given, option):
            name = option.replace("_", "-")
            raise ValueError(f"--{name} is not for lists of videos; leave out --output")
    if given.format != "text":
        raise ValueError(
            f"--format {given.format} is not for lists of videos; the ending of --output, .csv or "
            ".parquet, chooses the format of the table"
        )


def _predict(given: argparse.Namespace, world: World) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from ffn.serve.batch import BatchOptions, VideoList, predict_batch

    chosen = {name: getattr(given, name) for name in DEFAULTS}
    chosen = {name: DEFAULTS[name] if value is None else value for name, value in chosen.items()}
    videos = VideoList.read(Path(given.files[0]), chosen.pop("root"))
    if chosen["workers"] is None:
        chosen["workers"] = _default_workers()
    options = BatchOptions(
        frames=given.frames,
        budget_ms=given.budget_ms,
        budget_gmacs=given.budget_gmacs,
        labels=given.top,
        **chosen,
    )

    def build(precision: str | None) -> Predictor:
        return build_predictor(given, world.device, precision or given.precision)

    console = Console(stderr=True)
    hidden = not (world.is_main and console.is_terminal)
    with Progress(console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("predicting", total=None)
        result = predict_batch(
            build,
            videos,
            given.output,
            options,
            rank=world.rank,
            size=world.size,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if world.is_main:
        kept = f", {result.kept} of them by an earlier call" if result.kept else ""
        errors = f"; {result.errors} could not be read, see its column error"
        print(f"{given.output}: {result.videos} videos{kept}{errors if result.errors else ''}")


def _default_workers() -> int:
    """Processes that decode, for each process of this machine: its share of the cores but one."""
    from ffn.devices import usable_cores

    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(MAX_DEFAULT_WORKERS, max(1, usable_cores() // processes - 1))


def build_predictor(
    given: argparse.Namespace,
    device: torch.device,
    precision: str,
    early_exit: str | None = None,
) -> Predictor:
    """The predictor that the options of a command describe.

    Raises:
        ValueError, OSError, ffn.zoo.WeightsError: the weights or options are invalid.
    """
    from ffn.host_memory import tune_allocator
    from ffn.serve import Predictor

    if device.type == "cpu":
        tune_allocator()
    return Predictor(
        given.weights,
        device=device,
        pattern=given.pattern,
        precision=precision,
        fuse=not given.no_fuse,
        compile=given.compile,
        cuda_graphs=given.cuda_graphs,
        early_exit=early_exit,
    )


def refuse_list_arguments(given: argparse.Namespace) -> None:
    """Raise ValueError for an option of lists, in a call without ``--output``."""
    for name in DEFAULTS:
        if getattr(given, name) is not None:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} is for lists of videos; add --output TABLE.csv")


def add_list_arguments(parser: argparse.ArgumentParser) -> None:
    """Options for lists of videos; None if they are not given."""
    option = parser.add_argument
    option(
        "--output",
        type=Path,
        metavar="TABLE",
        help="predict a list of videos into this *.csv or *.parquet file",
    )
    option("--root", help="folder that relative paths of the list start from; default: its folder")
    option(
        "--batch-size",
        type=positive_int,
        metavar="n",
        help=f"videos of the list per forward pass; default: {DEFAULTS['batch_size']}",
    )
    option(
        "--workers",
        type=non_negative_int,
        metavar="n",
        help="processes that decode the videos of the list, per process; default: one per core, "
        f"but one core is left free, at most {MAX_DEFAULT_WORKERS}",
    )
    option(
        "--timeout",
        type=positive_number,
        metavar="SECONDS",
        help="time for a video of the list; one that blocks is a row with its cause; "
        f"default: {DEFAULTS['timeout']:g}",
    )
