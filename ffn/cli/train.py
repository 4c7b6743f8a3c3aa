"""``tools/train.py CONFIG key=value…``: train, alone or under torchrun."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

FOR_EVER = 30 * 86400.0  # seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, build, train; returns the exit status."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the run listens: an end, no traceback
    try:
        return _train(arguments)
    finally:
        signal.signal(signal.SIGINT, before)


def _train(arguments: Sequence[str] | None) -> int:
    from ffn.engine.config import ConfigError, load_config, option_help

    parser = argparse.ArgumentParser(
        prog="train.py",
        description="Train a video network from a config, alone or under torchrun. A run whose "
        "folder exists is continued. Exit status: 0 trained; 2 it cannot be done, or went wrong, "
        "as the message says; 75 SIGTERM, SIGINT or SIGUSR1 came, and the run has saved what it "
        "did: the same command continues it.",
        epilog="options, with their defaults:\n\n" + option_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", help="yaml file; configs/ holds those that ship")
    parser.add_argument("options", nargs="*", metavar="key=value", help="overrides, see below")
    given = parser.parse_args(arguments)
    try:
        config = load_config(given.config, given.options)
    except ConfigError as error:
        if int(os.environ.get("LOCAL_RANK", 0)) == 0:  # the others would say the same
            print(f"train.py: {error}", file=sys.stderr)
        return 2

    from ffn.cli.failures import failures
    from ffn.engine.distributed import end, processes
    from ffn.engine.loop import Trainer
    from ffn.engine.signals import EXIT_STOPPED, StoppedError

    rank, several = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)) > 1
    who = f"train.py, process {rank}" if several else "train.py"
    patience = 2 * config.data.timeout or FOR_EVER
    try:
        with processes(patience) as world:
            best = Trainer(config, world).run()
    except StoppedError as error:
        if rank == 0:
            print(f"train.py: {error}; the same command continues the run", file=sys.stderr)
        return end(EXIT_STOPPED)
    except failures() as error:
        if not getattr(error, "told", False):
            print(f"{who}: {error}", file=sys.stderr)
        return end(2)
    if rank == 0:
        print(f"best network: {best}")
    return 0
