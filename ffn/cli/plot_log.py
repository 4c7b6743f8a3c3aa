"""Curves of training runs in one figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import ExistingDirectory

from ffn.cli.arguments import Overwrite, refuse_existing


def plot_log(
    *runs: Annotated[ExistingDirectory, Parameter(name="RUN", required=True)],
    output: Path = Path("curves.png"),
    overwrite: Overwrite = False,
    keys: list[str] | None = None,
) -> None:
    """Draw the curves of training runs, finished or in progress, from their log.jsonl.

    Loss, accuracy per frame count, learning rate, gradient norm, speed and data wait.

    Args:
        runs: Folders of runs (log.output).
        output: The figure.
        keys: Draw these keys of the log, one panel each, e.g. train/memory_mib 'val/top1/*'.
    """
    refuse_existing(output, overwrite)

    from ffn.engine.logs.run_log import read_log
    from ffn.evaluation.curves import save_curves

    logs = {name: read_log(path) for name, path in named(runs).items()}
    empty = [name for name, entries in logs.items() if not entries]
    if empty:
        raise ValueError(f"the log of {empty[0]} is empty; wait for its first log.interval")
    output.parent.mkdir(parents=True, exist_ok=True)
    save_curves(logs, output, keys)
    print(output)


def named(paths: Sequence[str | Path]) -> dict[str, Path]:
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
