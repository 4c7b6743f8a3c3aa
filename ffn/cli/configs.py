"""List the configs that ship, and find them by name."""

from __future__ import annotations

import difflib
import fnmatch
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ffn.files import shipped


def configs(pattern: Annotated[str, Parameter(name="PATTERN")] = "*", /) -> None:
    """List the configs that ship with ffn.

    Every command that takes a CONFIG finds them by these names; a file of that path in the current
    folder comes first.

    Args:
        pattern: Names to list, e.g. 'sthv1/*'.
    """
    names = fnmatch.filter(config_names(), pattern)
    if not names:
        raise ValueError(_unknown(pattern))
    width = max(map(len, names))
    for name in names:
        print(f"{name:<{width}}  {description(name)}")


def config_names() -> list[str]:
    """Names of the configs that ship, e.g. ``quickstart/own_clips``, sorted."""
    folder = shipped("configs")
    return sorted(p.relative_to(folder).with_suffix("").as_posix() for p in folder.glob("*/*.yaml"))


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
    return shipped("configs") / f"{name}.yaml"


def description(name: str) -> str:
    """The first sentence of a config's comment, on one line."""
    lines = (shipped("configs") / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
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
    hint = f"did you mean {', '.join(close)}? " if close else ""
    return f'no config "{name}" ships with ffn; {hint}ffn configs lists all'
