"""Find and read the official list files of a data set."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from ffn.data.lists import read_lines as numbered_lines
from ffn.datasets.disk import Inventory
from ffn.datasets.listing import PreparationError


def find_lists(
    lists: Inventory,
    patterns: Mapping[str, str],
    needed: tuple[str, ...],
    title: str,
    columns: frozenset[str] = frozenset(),
) -> dict[str, Path]:
    """The file of each role.

    Args:
        lists: Where to search.
        patterns: Regular expression of the whole file name by role, e.g. `{"train": "train.csv"}`.
        needed: Roles that must be found.
        title: Name of the data set, for messages.
        columns: Columns that the header of a file must have.

    Raises:
        PreparationError: if a needed list is missing, or different files match one role.
    """
    found = {}
    for role, pattern in patterns.items():
        paths = [p for p in lists.find_list(pattern) if not columns or columns <= {*read_header(p)}]
        if len({path.read_bytes() for path in paths}) > 1:
            shown = ", ".join(str(path.relative_to(lists.root)) for path in paths[:4])
            raise PreparationError(
                f"{len(paths)} different files under {lists.root} may be the {role} list of "
                f"{title}: {shown}; name the folder of the right ones with --annotations"
            )
        if paths:
            found[role] = paths[0]
        elif role in needed:
            raise PreparationError(
                f"no {role} list of {title} under {lists.root}: no file is named like "
                f"{_readable(pattern)}. Put the official lists there, or name their folder with "
                "--annotations. For videos in a folder per class without lists, use the data set "
                "`folder`"
            )
    return found


def _readable(pattern: str) -> str:
    """A pattern of this package without regular expression syntax."""
    return pattern.replace("(?:", "(").replace("\\.", ".").replace(".*", "…").replace("[-_]?", "-")


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Position (`file:line`) and stripped text of each line that is not blank.

    Raises:
        ValueError: if it is not UTF-8 text.
    """
    for number, line in numbered_lines(path):
        yield f"{path.name}:{number}", line.strip()


def read_rows(path: Path, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    """Position (`file:line`) and stripped cells of each row of a table that is not blank."""
    for number, line in numbered_lines(path):
        cells = [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter))]
        if any(cells):
            yield f"{path.name}:{number}", cells


def read_header(path: Path) -> list[str]:
    """Cells of the first row of a csv file, in lower case."""
    _, first = next(read_rows(path, ","), ("", []))
    return [cell.lower() for cell in first]


def read_table(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Position (`file:line`) and cells by column of each row below the header of a csv file.

    Raises:
        PreparationError: if a row and the header have different numbers of cells.
    """
    header = read_header(path)
    for where, row in list(read_rows(path, ","))[1:]:
        if len(row) != len(header):
            raise PreparationError(f"{where}: {len(row)} cells under {len(header)} columns")
        yield where, dict(zip(header, row, strict=True))
