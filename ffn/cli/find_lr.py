"""``tools/find_lr.py CONFIG key=value…``: learning-rate range test."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ffn.cli.arguments import (
    add_device_argument,
    add_overrides_argument,
    positive_int,
    refuse_existing,
)
from ffn.cli.configs import read_run
from ffn.cli.program import Parser, called_as, fail_once, prefix, program
from ffn.files import make_writable

if TYPE_CHECKING:
    from ffn.engine.distributed import World
    from ffn.engine.options import Config

LEAST_STEPS = 50


@program("find_lr", "no results are written; the same command starts again")
def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, train at growing rates, print and write the curve; returns the exit status."""
    given = _parser().parse_with_overrides(arguments)

    try:
        _check_rates(given)
        config, device = read_run(given)
        given.output = Path(given.output or Path(config.log.output) / "find_lr")
        for suffix in ("json", "png"):
            refuse_existing(given.output / f"lr_range.{suffix}", given.overwrite)
        make_writable(given.output)
    except (ValueError, OSError) as error:
        return fail_once("find_lr", error)

    from ffn.engine.failures import run_command

    run = partial(_find, given, config)
    return run_command(prefix("find_lr"), run, data_timeout=config.data.timeout, device=device)


def _find(given: argparse.Namespace, config: Config, world: World) -> None:
    from rich.progress import track

    from ffn.engine.build import build_range_test
    from ffn.engine.build_network import scaled_learning_rate
    from ffn.engine.config import config_to_dict
    from ffn.engine.failures import explain_failures
    from ffn.engine.lr_range import endless, learning_rates, range_test, suggest
    from ffn.engine.lr_range_report import report_lines, save_range_test

    step, loader = build_range_test(config, world)
    rates = learning_rates(given.low, given.high, given.steps)
    shown = track(rates, "learning rates", transient=True, disable=not world.is_main)
    with closing(shown), explain_failures(world, loader, batch_size=loader.batch_size):
        result = range_test(step, endless(loader), shown, steps=given.steps)
    if not world.is_main:
        return
    suggestion = suggest(result)
    scale = scaled_learning_rate(config) / config.optim.lr
    print("\n".join(report_lines(result, suggestion, scale)))
    for file in save_range_test(result, suggestion, given.output, config_to_dict(config)):
        print(file)


def _check_rates(given: argparse.Namespace) -> None:
    if given.steps < LEAST_STEPS:
        raise ValueError(f"--steps is {given.steps}; give {LEAST_STEPS} or more, e.g. 300")
    if not 0 < given.low < given.high < math.inf:
        raise ValueError(
            f"--low is {given.low:g} and --high {given.high:g}; give two rates above 0, the lower "
            "one first, e.g. --low 1e-6 --high 1"
        )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("find_lr"),
        description="Find the order of magnitude of the learning rate: train a config for some "
        "steps while the rate grows exponentially, until the loss diverges (range test, Smith "
        "2017). Prints a suggestion, and writes lr_range.json and lr_range.png. Runs in one "
        "process or under torchrun. No checkpoint is read or written; the schedule of the config "
        "is not used.",
    )
    parser.add_argument("config", metavar="CONFIG", help="YAML file, or a name of `ffn configs`")
    add_overrides_argument(parser)
    option = parser.add_argument
    option("--low", type=float, default=1e-6, metavar="LR", help="first rate; default: 1e-6")
    option("--high", type=float, default=1.0, metavar="LR", help="last rate; default: 1")
    option(
        "--steps", type=positive_int, default=300, metavar="N", help="optimizer steps; default: 300"
    )
    option("--output", metavar="FOLDER", help="default: find_lr in the run folder (log.output)")
    option("--overwrite", action="store_true", help="replace the files of an earlier test")
    add_device_argument(parser)
    return parser
