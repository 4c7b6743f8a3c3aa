"""Read the rows of a list of videos: a table with a header, or a text list.

`docs/data.md` has the grammar. A line that can be read in two ways is refused.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from ffn.data.annotation_rows import SUFFIX, AnnotationRow, is_several_numbers, is_video, short
from ffn.data.text_lists import read_text_list
from ffn.labels import SEPARATOR
from ffn.limits import CELL_CHARACTERS

# Accepted names of the columns of a table, in lower case; the first one found is used.
_COLUMNS = {
    "path": ("path", "video", "video_path", "file", "filename"),
    "label": ("label", "class", "class_name", "category"),
    "labels": ("labels",),
    "frames": ("frames", "num_frames"),
    "start": ("start",),
    "end": ("end",),
    "width": ("width",),
    "height": ("height",),
    "group": ("group",),
}
_LABELS = (*_COLUMNS["label"], *_COLUMNS["labels"])
_SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons"}
_LINE_END = re.compile(r"\r\n|\n|\r")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def read_lines(path: str | os.PathLike[str]) -> list[tuple[int, str]]:
    """Read a UTF-8 text file: the numbers and texts of its lines that are not blank.

    Raises:
        ValueError: if it holds other bytes or control characters; the message has the line.
    """
    data = Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = len(_LINE_END.split(data[: error.start].decode("utf-8")))
        raise ValueError(
            f"{path}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8, "
            "e.g. with iconv -f LATIN1 -t UTF-8"
        ) from None
    lines = [(n, line) for n, line in enumerate(_LINE_END.split(text), 1) if line.strip(" \t")]
    if _CONTROL.search(text):
        n, found = next((n, m) for n, line in lines if (m := _CONTROL.search(line)))
        raise ValueError(
            f"{path}:{n}: control character {found[0]!r}; a list is plain text. Write it again"
        )
    return lines


def read_paths(path: Path) -> list[AnnotationRow]:
    """Read a list of videos without labels.

    A table with a header needs a column `path`; it may have `start`, `end` and `frames`, and other
    columns are ignored, also labels. Any other file has one path per line.

    Returns:
        The rows, with "" as label.

    Raises:
        FileNotFoundError: if the list does not exist.
        ValueError: if it has no video, or a line is invalid.
    """
    if not path.is_file():
        wrong = "is a folder" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"list {path} {wrong}; expected a csv, or a path per line")
    lines = read_lines(path)
    paths = {*_COLUMNS["path"]}
    separator = next(
        (c for c in _SEPARATORS if lines and _header_names(lines[0][1], c) & paths), None
    )
    if separator is not None:
        rows = list(_table_rows(path, lines, separator, (), labelled=False))
    elif path.suffix.lower() == ".csv" and lines:
        raise ValueError(
            f"{path}:{lines[0][0]}: no column for the path in the header {short(lines[0][1])}; "
            f"expected one of {', '.join(_COLUMNS['path'])}"
        )
    else:
        rows = [AnnotationRow(f"{path}:{n}", line.strip(), "") for n, line in lines]
    if not rows:
        raise ValueError(f"{path} contains no video; write a path per line, or a header with path")
    for row in rows:
        _check_cells(row)
    return rows


def read_list(path: Path, columns: Sequence[str] = ()) -> list[AnnotationRow]:
    """Read the rows of a table or a text list; see `ffn.data.read_annotation_rows`."""
    lines = read_lines(path)
    if not lines:
        raise ValueError(
            f"{path} contains no video; write lines as clip.mp4,push under the header path,label"
        )
    separator = _separator(path, *lines[0])
    if separator is None and columns:
        raise ValueError(
            f"{path} is not a csv and has no columns {', '.join(columns)}; expected a csv with "
            f"the header path,label,{','.join(columns)}"
        )
    is_table = separator is not None
    rows = list(
        _table_rows(path, lines, separator, columns) if is_table else read_text_list(path, lines)
    )
    if not rows:
        raise ValueError(
            f"{path} contains no video; write lines as clip.mp4,push under the header path,label"
        )
    for row in rows:
        _check_cells(row)
    first, *others = (is_video(row.path) for row in rows)
    if not is_table and not first and others and all(others):
        _refuse_header(rows[0].where, lines[0][1])
    return rows


def further_columns(path: Path) -> tuple[str, ...]:
    """Names of the columns of a table but path, label, frames, start, end; () for a text list."""
    lines = read_lines(path)
    separator = _separator(path, *lines[0]) if lines else None
    if separator is None:
        return ()
    where = f"{path}:{lines[0][0]}"
    header = [cell.lower() for cell in _cells(where, lines[0][1], separator)]
    fields = _find_columns(where, header, labelled=True)
    used = {fields.get(field) for field in ("path", "label", "labels", "frames", "start", "end")}
    return tuple(name for column, name in enumerate(header) if name and column not in used)


def _separator(path: Path, number: int, line: str) -> str | None:
    """The character between the columns of a table; None if the line is no header."""
    for separator in _SEPARATORS:
        names = _header_names(line, separator)
        if names & {*_COLUMNS["path"]} and names & {*_LABELS}:
            return separator
    used = [separator for separator in _SEPARATORS if separator in line]
    known = {*_COLUMNS["path"], *_LABELS}
    lacking = [separator for separator in used if _header_names(line, separator) & known]
    if lacking or path.suffix.lower() == ".csv":
        return [*lacking, *used, ","][0]  # a header that lacks a column
    words = line.lower().split()
    known = {name for names in _COLUMNS.values() for name in names}
    is_label = words[-1] in _LABELS and not re.search(rf"{SUFFIX}\s", line)
    if len(words) > 1 and (is_label or {*words} <= known):
        _refuse_header(f"{path}:{number}", line)
    return None


def _header_names(line: str, separator: str) -> set[str]:
    return {cell.strip(' \t"').lower() for cell in line.split(separator)}


def _refuse_header(where: str, line: str) -> None:
    raise ValueError(
        f"{where}: {short(line)} looks like a header; separate its columns with commas or tabs "
        "and name two of them path and label, or remove the line"
    )


# --- tables --------------------------------------------------------------------------------------


def _table_rows(
    path: Path,
    lines: Sequence[tuple[int, str]],
    separator: str,
    extra: Sequence[str],
    *,
    labelled: bool = True,
) -> Iterator[AnnotationRow]:
    (first, line), *lines = lines
    where = f"{path}:{first}"
    header = [cell.lower() for cell in _cells(where, line, separator)]
    columns = _find_columns(where, header, labelled)
    others = [_find_column(where, header, name) for name in extra]
    for number, line in lines:
        where = f"{path}:{number}"
        cells = _cells(where, line, separator)
        if not any(cells):
            continue
        if len(cells) != len(header):
            raise ValueError(
                f"{where}: {len(cells)} cell(s), but the header has {len(header)}; the columns are "
                f'separated by {_SEPARATORS[separator]}. Quote ("…") cells that contain them'
            )
        values = {field: cells[column] or None for field, column in columns.items()}
        if not labelled:
            values.pop("labels", None)
            values["label"] = ""
        if "labels" in values:
            values["label"] = _split_labels(where, values.pop("labels"))
        for field in ("path", "label"):
            if values[field] is None:
                raise ValueError(f"{where}: the {field} is empty")
        yield AnnotationRow(where, **values, extra=tuple(cells[i] for i in others))


def _cells(where: str, line: str, separator: str) -> list[str]:
    """The cells of a line; blanks around them do not count."""
    try:
        if line.count('"') % 2:
            raise csv.Error("an odd number of quotes")
        table = csv.reader([line], delimiter=separator, strict=True, skipinitialspace=True)
        return [cell.strip() for cell in next(table)]
    except csv.Error as error:
        cause = str(error).replace("\t", "tab")
        raise ValueError(
            f"{where}: {cause} in {short(line)}; a quoted cell ends in its line, and a quote in "
            "a cell is written twice"
        ) from None


def _split_labels(where: str, cell: str | None) -> tuple[str, ...]:
    """The labels of a video in a cell of the column labels; an empty cell has none."""
    labels = tuple(label.strip() for label in cell.split(SEPARATOR)) if cell else ()
    if not all(labels):
        raise ValueError(
            f"{where}: labels {short(cell)} has an empty label; expected labels separated by "
            f"{SEPARATOR}, e.g. push{SEPARATOR}pull, and an empty cell for a video without a label"
        )
    return labels


def _find_columns(where: str, header: list[str], labelled: bool) -> dict[str, int]:
    """Column of each field that a table has; a label is needed if ``labelled``."""
    repeated = [name for name in header if name and header.count(name) > 1]
    if repeated:
        raise ValueError(f"{where}: the header has {repeated[0]!r} twice; rename one of them")
    found = {
        field: next((header.index(name) for name in names if name in header), None)
        for field, names in _COLUMNS.items()
    }
    single = [name for name in _COLUMNS["label"] if name in header]
    if single and found["labels"] is not None:
        raise ValueError(
            f"{where}: the header has {single[0]} (one per video) and labels (several per video); "
            "remove or rename one of the columns"
        )
    found["label"] = found["label"] if found["labels"] is None else found["labels"]
    for field, names in (("path", _COLUMNS["path"]), ("label", _LABELS)):
        if found[field] is None and (labelled or field == "path"):
            raise ValueError(
                f"{where}: no column for the {field} in the header {short(header)}; "
                f"expected one of {', '.join(names)}. A list without a header is a .txt "
                "file with lines 'path label'"
            )
    return {field: column for field, column in found.items() if column is not None}


def _find_column(where: str, header: list[str], name: str) -> int:
    if name.lower() in header:
        return header.index(name.lower())
    close = get_close_matches(name.lower(), header, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise ValueError(f"{where}: no column {name!r}; the columns are {', '.join(header)}{hint}")


def _check_cells(row: AnnotationRow) -> None:
    """Raise ValueError for a path or a label that cannot be one."""
    longest = max(row.path, *row.labels, key=len)
    if refusal := CELL_CHARACTERS.refusal(len(longest)):
        raise ValueError(
            f"{row.where}: the path or label {short(longest)} has {refusal}. Is a line end or a "
            "quote missing?"
        )
    for label in row.labels:
        if is_video(label):
            raise ValueError(
                f"{row.where}: label {short(label)} is a video; expected the path first, then "
                "the label"
            )
        if is_several_numbers(label):
            remedy = f" between {SEPARATOR}" if isinstance(row.label, tuple) else ""
            raise ValueError(
                f"{row.where}: label {short(label)} is several numbers; expected one{remedy}"
            )
