"""Predict the videos of a list into a table, in one process or under torchrun."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Group, Parameter
from cyclopts.types import NonNegativeInt, PositiveFloat, PositiveInt

from ffn.cli.arguments import Network

if TYPE_CHECKING:
    from ffn.engine.distributed import World
    from ffn.serve import Predictor

MAX_DEFAULT_WORKERS = 8


@Parameter(name="*", group=Group("A list of videos into a table, also under torchrun"))
@dataclass(frozen=True)
class Batch:
    """Prediction of a list, which goes on where a stopped call ended.

    Attributes:
        output: Table *.csv; FILE is a list: a csv with a column path, or a path per line.
        root: Folder that relative paths of the list start from; default: its folder.
        batch_size: Videos per forward pass.
        workers: Processes that decode, per process; default: one per core, but one core is left
            free, at most 8.
        timeout: Seconds to read a video, also without a list; a longer one is an error.
    """

    output: Path | None = None
    root: str | None = None
    batch_size: PositiveInt = 16
    workers: NonNegativeInt | None = None
    timeout: PositiveFloat = 600.0


DEFAULT_BATCH = Batch()


def predict_list(
    path: Path,
    weights: str,
    choice: dict[str, Any],
    batch: Batch,
    network: Network,
    top: int,
    world: World,
) -> None:
    """Predict the list of a path and write the table; every process calls this.

    ``choice`` has the arguments of a predictor that choose the number of frames, ``top`` is the
    number of labels per video.
    """
    from rich.console import Console
    from rich.progress import Progress

    from ffn.serve.batch import predict_batch, read_videos

    def build(precision: str | None) -> Predictor:
        chosen = replace(network, precision=precision or network.precision)
        return chosen.build_predictor(weights, device=world.device)

    console = Console(stderr=True)
    hidden = not (world.is_main and console.is_terminal)
    with Progress(console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("predicting", total=None)
        result = predict_batch(
            build,
            read_videos(path, batch.root),
            batch.output,
            choice,
            labels=top,
            batch_size=batch.batch_size,
            workers=_default_workers() if batch.workers is None else batch.workers,
            timeout=batch.timeout,
            rank=world.rank,
            size=world.size,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if world.is_main:
        kept = f", {result.kept} of them by an earlier call" if result.kept else ""
        errors = f"; {result.errors} could not be read, see its column error"
        print(f"{batch.output}: {result.videos} videos{kept}{errors if result.errors else ''}")


def _default_workers() -> int:
    """Processes that decode, for each process of this machine: its share of the cores but one."""
    from ffn.devices import usable_cores

    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(MAX_DEFAULT_WORKERS, max(1, usable_cores() // processes - 1))
