"""``tools/plot_log.py RUN…``: curves of training runs in one figure."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ffn.cli.arguments import refuse_existing
from ffn.cli.program import Parser, called_as, fail, program


@program("plot_log", "the same command starts again")
def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, read, draw; returns the exit status."""
    given = _parser().parse_args(arguments)

    from ffn.engine.logs.run_log import read_log
    from ffn.evaluation.curves import save_curves

    output = Path(given.output)
    try:
        refuse_existing(output, given.overwrite)
        runs = {name: read_log(path) for name, path in named(given.runs).items()}
        empty = [name for name, entries in runs.items() if not entries]
        if empty:
            raise ValueError(f"the log of {empty[0]} is empty; wait for its first log.interval")
        output.parent.mkdir(parents=True, exist_ok=True)
        save_curves(runs, output, given.keys)
    except (ValueError, OSError, ImportError) as error:
        return fail("plot_log", error)
    print(output)
    return 0


def named(paths: Sequence[str]) -> dict[str, Path]:
    """Name folders by the shortest end of their path that is unique; repeated folders count once.

    >>> list(named(["runs/a", "runs/b"])), list(named(["one/a", "two/a"]))
    (['a', 'b'], ['one/a', 'two/a'])
    """
    folders = list(dict.fromkeys(Path(path).resolve() for path in paths))
    for length in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-length:]) for folder in folders]
        if len(set(names)) == len(names):
            break
    return dict(zip(names, folders, strict=True))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("plot_log"),
        description="Draw loss, accuracy per frame count, learning rate, gradient norm, speed and "
        "data wait of runs, finished or in progress, from their log.jsonl.",
    )
    option = parser.add_argument
    option("runs", nargs="+", metavar="RUN", help="folder of a run (log.output)")
    option("--output", default="curves.png", metavar="FILE", help="figure; default: curves.png")
    option("--overwrite", action="store_true", help="replace an existing file")
    option(
        "--keys",
        nargs="+",
        metavar="KEY",
        help="draw these keys of the log, one panel each, as train/memory_mib 'val/top1/*'",
    )
    return parser
