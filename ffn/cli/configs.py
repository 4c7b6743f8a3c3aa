"""``tools/configs.py [PATTERN]``: list the configs that ship; other commands find them by name."""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ffn.cli.arguments import find_device
from ffn.cli.program import EXIT_FAILED, Parser, called_as, prefix, program

if TYPE_CHECKING:
    import torch

    from ffn.engine.options import Config


@program("configs", "run it again")
def main(arguments: Sequence[str] | None = None) -> int:
    """Print names and descriptions; returns 2 if no name matches."""
    parser = Parser(
        prog=called_as("configs"),
        description="List the configs that ship with ffn. Every command that takes a CONFIG finds "
        "them by these names; a file of that path in the current folder comes first.",
    )
    parser.add_argument("pattern", nargs="?", default="*", help="names to list, e.g. 'sthv1/*'")
    parser.add_argument("--folder", action="store_true", help="print the folder of the files")
    given = parser.parse_args(arguments)
    if given.folder:
        print(config_folder())
        return 0
    names = fnmatch.filter(config_names(), given.pattern)
    if not names:
        print(f"{prefix('configs')}: {_unknown(given.pattern)}", file=sys.stderr)
        return EXIT_FAILED
    width = max(map(len, names))
    for name in names:
        print(f"{name:<{width}}  {description(name)}")
    return 0


def config_folder() -> Path:
    """The folder of the configs, in an installed package or in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def config_names() -> list[str]:
    """Names of the configs that ship, e.g. ``quickstart/own_clips``, sorted."""
    folder = config_folder()
    return sorted(p.relative_to(folder).with_suffix("").as_posix() for p in folder.glob("*/*.yaml"))


def read_run(given: argparse.Namespace) -> tuple[Config, torch.device | None]:
    """The config of a command with its overrides, and the device; None is the default.

    Args:
        given: ``config`` (a path or a name), ``options`` (overrides) and ``device``.

    Raises:
        ValueError: an option or the device is not valid; ``ConfigError`` is one.
        OSError: the config cannot be read.
    """
    from ffn.engine.config import load_config

    device = None if given.device is None else find_device(given.device)
    return load_config(find_config(given.config), given.options), device


def find_config(path: str | Path) -> Path:
    """The file of a config: a path, or else the name of a config that ships.

    Args:
        path: e.g. ``my/run.yaml``, ``quickstart/own_clips`` or ``configs/sthv1/tsm_r50.yaml``.

    Raises:
        FileNotFoundError: neither; the message names the closest configs.
    """
    path = Path(path)
    if path.is_file():
        return path
    name = path.as_posix().removeprefix("configs/").removesuffix(".yaml")
    if name not in config_names():
        raise FileNotFoundError(f"no config file {path}, and {_unknown(name)}")
    return config_folder() / f"{name}.yaml"


def description(name: str) -> str:
    """The first sentence of a config's comment, on one line."""
    lines = (config_folder() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    comment = []
    for line in lines:
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# "))
        if line.endswith("."):
            break
    return " ".join(comment)


def _unknown(name: str) -> str:
    names = config_names()
    close = difflib.get_close_matches(name, names, n=3)
    if not close:  # a name without its folder
        last = {one.partition("/")[2]: one for one in names}
        found = difflib.get_close_matches(name.rpartition("/")[2], last, n=3, cutoff=0.8)
        close = [last[one] for one in found]
    hint = f"did you mean {', '.join(close)}? " if close else ""
    return f'no config "{name}" ships with ffn; {hint}ffn configs lists all'
