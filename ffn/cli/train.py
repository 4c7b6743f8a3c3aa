"""``tools/train.py CONFIG key=value…``: train, alone or under torchrun."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, build, train; returns the exit status."""
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
        print(f"train.py: {error}", file=sys.stderr)
        return 2

    from ffn.cli.failures import failures
    from ffn.engine.distributed import processes
    from ffn.engine.loop import Trainer
    from ffn.engine.signals import EXIT_STOPPED, StoppedError

    with processes(patience=2 * config.data.timeout) as world:
        who = "train.py" if world.size == 1 else f"train.py, process {world.rank}"
        try:
            best = Trainer(config, world).run()
        except StoppedError:
            if world.is_main:
                print("stopped and saved: the same command continues the run", file=sys.stderr)
            return EXIT_STOPPED
        except failures() as error:
            if not getattr(error, "told", False):
                print(f"{who}: {error}", file=sys.stderr)
            return 2
        if world.is_main:
            print(f"best network: {best}")
    return 0
