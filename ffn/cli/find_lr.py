"""Learning-rate range test."""

from __future__ import annotations

import math
from contextlib import closing
from typing import Annotated

from cyclopts import Parameter, validators

from ffn.cli.arguments import ConfigFile, Device, Override, read_run


def find_lr(
    config: ConfigFile,
    /,
    *overrides: Override,
    low: float = 1e-6,
    high: float = 1.0,
    steps: Annotated[int, Parameter(validator=validators.Number(gte=50))] = 300,
    device: Device = None,
) -> None:
    """Find the order of magnitude of the learning rate.

    A config is trained for some steps while the rate grows exponentially, until the loss diverges
    (range test, Smith 2017). Prints the curve and a suggestion. Runs in one process or under
    torchrun. Nothing is written; the schedule of the config is not used.

    Args:
        low: First rate.
        high: Last rate.
        steps: Optimizer steps, at least 50.
    """
    if not 0 < low < high < math.inf:
        raise ValueError(
            f"--low is {low:g} and --high {high:g}; give two rates above 0, the lower one first, "
            "e.g. --low 1e-6 --high 1"
        )
    options, chosen = read_run(config, overrides, device)

    import numpy as np
    from rich.progress import track

    from ffn.engine.build import build_training
    from ffn.engine.build_network import scaled_learning_rate
    from ffn.engine.failures import processes
    from ffn.engine.lr_range import endless, range_test, report_lines

    with processes("ffn find_lr", data_timeout=options.data.timeout, device=chosen) as world:
        training = build_training(options, world)
        loader, rates = training.loader, np.geomspace(low, high, steps).tolist()
        shown = track(rates, "learning rates", transient=True, disable=not world.is_main)
        with closing(shown):
            step = training.step
            tested = range_test(step, endless(loader, step.grad_accum_steps), shown)
        if world.is_main:
            scale = scaled_learning_rate(options) / options.optim.lr
            print("\n".join(report_lines(*tested, scale)))
