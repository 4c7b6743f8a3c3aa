"""``tools/train.py CONFIG key=value…``: train, in one process or under torchrun."""

from __future__ import annotations

import argparse
import shutil
import signal
import textwrap
from collections.abc import Sequence

from ffn.cli.arguments import add_device_argument, add_overrides_argument
from ffn.cli.configs import find_config, read_run
from ffn.cli.program import Parser, called_as, fail_once, prefix, program


@program("train", "the same command resumes")
def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, build, train; returns the exit status."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C before the run starts: no traceback
    try:
        return _train(arguments)
    finally:
        signal.signal(signal.SIGINT, before)


def _train(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    given = parser.parse_with_overrides(arguments)
    if given.config is None and not given.help:
        parser.error("CONFIG is missing")
    try:
        if given.help:
            path = None if given.config is None else str(find_config(given.config))
            _print_help(parser, path, given.options)
            return 0
        config, device = read_run(given)
    except (ValueError, OSError) as error:  # ConfigError is a ValueError
        return fail_once("train", error)

    from ffn.engine.build import build_run
    from ffn.engine.distributed import World
    from ffn.engine.failures import run_command
    from ffn.engine.loop import train

    def run(world: World) -> None:
        best = train(build_run(config, world))
        if world.is_main:
            print(f"best network: {best}")

    return run_command(prefix("train"), run, data_timeout=config.data.timeout, device=device)


def _print_help(
    parser: argparse.ArgumentParser, config: str | None, overrides: Sequence[str]
) -> None:
    """Print the usage and all options, with those of imported tasks."""
    from ffn.engine.config import import_packages
    from ffn.engine.config_help import option_help

    import_packages(config, overrides)
    print(parser.format_help())
    print(f"options, with their defaults:\n\n{_wrap(option_help())}")


def _wrap(table: str) -> str:
    """Wrap the lines of the options to the terminal; a pipe gets one line per option."""
    columns = shutil.get_terminal_size(fallback=(0, 0)).columns
    if not columns:
        return table
    meaning = " " * 47  # column of the meanings
    width = max(columns, 80)
    return "\n".join(
        textwrap.fill(line, width, subsequent_indent=meaning, break_on_hyphens=False)
        for line in table.splitlines()
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("train"),
        add_help=False,
        description="Train a video network from a config, in one process or under torchrun. If the "
        "run folder (log.output) has a checkpoint, the run is resumed. Exit status: 0: trained. "
        "2: error; the message names the remedy. 75: stopped by SIGTERM, SIGINT or SIGUSR1 after "
        "saving a checkpoint; the same command resumes the run.",
    )
    parser.add_argument(
        "config", nargs="?", metavar="CONFIG", help="YAML file, or a name of `ffn configs`"
    )
    add_overrides_argument(parser)
    add_device_argument(parser)
    parser.add_argument(
        "-h",
        "--help",
        action="store_true",
        help="show this message and all options; with imports=[PACKAGE], those of its tasks too",
    )
    return parser
