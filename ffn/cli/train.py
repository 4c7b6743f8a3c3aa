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
        "folder exists is continued.",
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

    with processes() as world:
        try:
            best = Trainer(config, world).run()
        except failures() as error:
            print(f"train.py: {error}", file=sys.stderr)
            return 2
        if world.is_main:
            print(f"best network: {best}")
    return 0
