"""``tools/train.py CONFIG key=value…``: train, alone or under torchrun."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence


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

    from ffn.engine.distributed import World
    from ffn.engine.failures import run_command
    from ffn.engine.loop import Trainer

    def train(world: World) -> None:
        best = Trainer(config, world).run()
        if world.is_main:
            print(f"best network: {best}")

    return run_command("train.py", train, data_timeout=config.data.timeout)
