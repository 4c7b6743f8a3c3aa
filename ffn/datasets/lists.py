"""Finding the official lists of a data set, each exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ffn.datasets.disk import Inventory
from ffn.datasets.listing import PreparationError


def find_lists(
    lists: Inventory, patterns: Mapping[str, str], needed: tuple[str, ...], title: str
) -> dict[str, Path]:
    """The file for each role.

    Args:
        lists: Where to look.
        patterns: Regular expression of a file's whole name, by role, as `{"train": "train.csv"}`.
        needed: Roles without which nothing can be done.
        title: Name of the data set, for messages.

    Raises:
        PreparationError: if a needed list is missing, or files of different content fit one role.
    """
    found = {role: lists.find_list(pattern) for role, pattern in patterns.items()}
    return choose_lists(lists, found, patterns, needed, title)


def choose_lists(
    lists: Inventory,
    found: Mapping[str, list[Path]],
    patterns: Mapping[str, str],
    needed: tuple[str, ...],
    title: str,
) -> dict[str, Path]:
    """As `find_lists`, with the candidates given."""
    for role, paths in found.items():
        if len({path.read_bytes() for path in paths}) > 1:
            shown = ", ".join(str(path.relative_to(lists.root)) for path in paths[:4])
            raise PreparationError(
                f"{len(paths)} different files under {lists.root} may be the {role} list of "
                f"{title}: {shown}; name the folder of the right ones with --annotations"
            )
    missing = [role for role in needed if not found[role]]
    if missing:
        raise PreparationError(
            f"no {missing[0]} list of {title} under {lists.root}: no file is named like "
            f"{_readable(patterns[missing[0]])}. Put the official lists there, or name their "
            "folder with --annotations; videos in a folder per class without any list are the "
            "data set `folder`"
        )
    return {role: paths[0] for role, paths in found.items() if paths}


def _readable(pattern: str) -> str:
    """A regular expression of ours as people write names."""
    return pattern.replace("(?:", "(").replace("\\.", ".").replace(".*", "…").replace("[-_]?", "-")
