"""Learning-rate range test."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from ffn.cli.arguments import ConfigFile, Device, Override, Overwrite, read_run
from ffn.files import make_writable, refuse_existing


def find_lr(
    config: ConfigFile,
    /,
    *overrides: Override,
    low: float = 1e-6,
    high: float = 1.0,
    steps: Annotated[int, Parameter(validator=validators.Number(gte=50))] = 300,
    output: Path | None = None,
    overwrite: Overwrite = False,
    device: Device = None,
) -> None:
    """Find the order of magnitude of the learning rate.

    A config is trained for some steps while the rate grows exponentially, until the loss diverges
    (range test, Smith 2017). Prints a suggestion, and writes lr_range.json and lr_range.png. Runs
    in one process or under torchrun. No checkpoint is read or written; the schedule of the config
    is not used.

    Args:
        low: First rate.
        high: Last rate.
        steps: Optimizer steps, at least 50.
        output: Folder; default: find_lr in the run folder (log.output).
    """
    if not 0 < low < high < math.inf:
        raise ValueError(
            f"--low is {low:g} and --high {high:g}; give two rates above 0, the lower one first, "
            "e.g. --low 1e-6 --high 1"
        )
    options, chosen = read_run(config, overrides, device)
    folder = output or Path(options.log.output or Path("runs", config.stem)) / "find_lr"
    refuse_existing([folder / "lr_range.json", folder / "lr_range.png"], overwrite)
    make_writable(folder)

    import numpy as np
    from rich.progress import track

    from ffn.engine.build import build_training
    from ffn.engine.build_network import scaled_learning_rate
    from ffn.engine.config import config_to_dict
    from ffn.engine.failures import explain_failures, processes
    from ffn.engine.lr_range import (
        endless,
        range_test,
        report_lines,
        save_range_test,
        suggest,
    )

    with processes("ffn find_lr", data_timeout=options.data.timeout, device=chosen) as world:
        training = build_training(options, world)
        loader, rates = training.loader, np.geomspace(low, high, steps).tolist()
        shown = track(rates, "learning rates", transient=True, disable=not world.is_main)
        with closing(shown), explain_failures(world, batch_size=loader.batch_size):
            result = range_test(training.step, endless(loader), shown)
        if not world.is_main:
            return
        suggestion = suggest(result)
        scale = scaled_learning_rate(options) / options.optim.lr
        print("\n".join(report_lines(result, suggestion, scale)))
        for file in save_range_test(result, suggestion, folder, config_to_dict(options)):
            print(file)
