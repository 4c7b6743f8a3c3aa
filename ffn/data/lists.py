"""Read the rows of a list of videos: a table with a header, or a text list.

`docs/data.md` has the grammar. A line that can be read in two ways is refused.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ffn.data.suffixes import VIDEO_SUFFIXES
from ffn.labels import SEPARATOR
from ffn.limits import CELL_CHARACTERS

# Accepted names of the columns of a table, in lower case; the first one found is used.
COLUMNS = {
    "path": ("path", "video", "video_path", "file", "filename"),
    "label": ("label", "class", "class_name", "category"),
    "labels": ("labels",),
    "frames": ("frames", "num_frames"),
    "start": ("start",),
    "end": ("end",),
    "group": ("group",),
}
_PATHS = {*COLUMNS["path"]}
_LABELS = {*COLUMNS["label"], *COLUMNS["labels"]}
_NAMES = {name for names in COLUMNS.values() for name in names}
_SEPARATORS = ",\t;"
_LINE_END = re.compile(r"\r\n|\n|\r")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SUFFIX = rf"(?i:{'|'.join(map(re.escape, VIDEO_SUFFIXES))})"
_BLANKS = r"[ \t]+"
# A line of a text list: path, number of frames if there is one, label.
_FILE_LINE = re.compile(rf"(.+?{_SUFFIX}){_BLANKS}(?:([0-9]+){_BLANKS})?(.+)")
_FOLDER_LINE = re.compile(rf"([^ \t]+){_BLANKS}(?:([0-9]+){_BLANKS})?([^ \t]+)")
_TABS_LINE = re.compile(r"([^\t]+?) *\t[\t ]*(?:([0-9]+) *\t[\t ]*)?([^\t]+)")


@dataclass(frozen=True, slots=True)
class AnnotationRow:
    """One unparsed entry of annotations.

    Attributes:
        where: File and line, for messages.
        path: As written.
        label: Class index or class name; in a list with several labels per video, all of them.
        frames: Number of frames, or None.
        start: Start in seconds, or None.
        end: End in seconds, or None.
        group: Name of the group of related videos, or None.
        extra: Cells of the other columns that the reader asked for, in that order.
    """

    where: str
    path: str
    label: str | tuple[str, ...]
    frames: str | None = None
    start: str | None = None
    end: str | None = None
    group: str | None = None
    extra: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels: one, or any number in a list with several labels per video."""
        return self.label if isinstance(self.label, tuple) else (self.label,)


def is_video(path: str) -> bool:
    """Whether a path has a video suffix."""
    return path.lower().endswith(VIDEO_SUFFIXES)


def is_number(text: str) -> bool:
    """Whether a text has digits alone."""
    return text.isascii() and text.isdigit()


def is_several_numbers(text: str) -> bool:
    """Whether a text is numbers with blanks between them."""
    return re.fullmatch(rf"[0-9]+({_BLANKS}[0-9]+)+", text) is not None


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
            f"{path}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from None
    lines = [(n, line) for n, line in enumerate(_LINE_END.split(text), 1) if line.strip(" \t")]
    for number, line in lines:
        if found := _CONTROL.search(line):
            raise ValueError(f"{path}:{number}: control character {found[0]!r} in a text file")
    return lines


def read_list(path: Path, columns: Sequence[str] = ()) -> list[AnnotationRow]:
    """Read the rows of a table or a text list; see `ffn.data.read_annotation_rows`."""
    lines = read_lines(path)
    separator = _separator(path, lines)
    if separator is not None:
        return _checked(path, [*_table_rows(path, lines, separator, columns)])
    if columns:
        raise ValueError(
            f"{path} is no table and has no columns {', '.join(columns)}; expected a csv with the "
            f"header path,label,{','.join(columns)}"
        )
    return _checked(path, _text_rows(path, lines))


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
    separators = [c for c in _SEPARATORS if lines and _names_in(lines[0][1], c) & _PATHS]
    if separators or (lines and path.suffix.lower() == ".csv"):
        rows = [*_table_rows(path, lines, [*separators, ","][0], (), labelled=False)]
    else:
        rows = [AnnotationRow(f"{path}:{n}", line.strip(), "") for n, line in lines]
    return _checked(path, rows)


def further_columns(path: Path) -> tuple[str, ...]:
    """Names of the columns of a table but path, label, frames, start, end; () for a text list."""
    lines = read_lines(path)
    separator = _separator(path, lines)
    if separator is None:
        return ()
    header, fields = _header(path, *lines[0], separator, labelled=True)
    used = {column for field, column in fields.items() if field != "group"}
    return tuple(name for column, name in enumerate(header) if name and column not in used)


def _separator(path: Path, lines: Sequence[tuple[int, str]]) -> str | None:
    """The character between the columns of a table; None if the first line is no header."""
    if not lines:
        return None
    number, line = lines[0]
    names = {separator: _names_in(line, separator) for separator in _SEPARATORS}
    for separator, found in names.items():
        if found & _PATHS and found & _LABELS:
            return separator
    lacking = [c for c, found in names.items() if len(found) > 1 and found & _NAMES]
    if lacking or path.suffix.lower() == ".csv":
        return [*lacking, *(c for c in names if c in line), ","][0]  # a column is missing
    words = line.lower().split()
    if len(words) > 1 and ({*words} <= _NAMES or (words[-1] in _LABELS and not _files(line))):
        _refuse(f"{path}:{number}", line, "looks like a header")
    return None


def _names_in(line: str, separator: str) -> set[str]:
    return {cell.strip(' \t"').lower() for cell in line.split(separator)}


def _table_rows(
    path: Path,
    lines: Sequence[tuple[int, str]],
    separator: str,
    extra: Sequence[str],
    *,
    labelled: bool = True,
) -> Iterator[AnnotationRow]:
    header, columns = _header(path, *lines[0], separator, labelled=labelled)
    for name in extra:
        if name.lower() not in header:
            raise ValueError(f"{path}: no column {name!r}; the columns are {', '.join(header)}")
    others = [header.index(name.lower()) for name in extra]
    for number, line in lines[1:]:
        where = f"{path}:{number}"
        cells = _cells(where, line, separator)
        if not any(cells):
            continue
        if len(cells) != len(header):
            raise ValueError(
                f"{where}: {len(cells)} cell(s), but the header has {len(header)}, separated by "
                f'{separator!r}. Quote ("…") cells that contain it'
            )
        values = {field: cells[column] or None for field, column in columns.items()}
        several = values.pop("labels", None)
        if not labelled:
            values["label"] = ""
        elif "labels" in columns:
            values["label"] = _split_labels(where, several)
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
        raise ValueError(f"{where}: {cause} in {short(line)}; a cell ends in its line") from None


def _split_labels(where: str, cell: str | None) -> tuple[str, ...]:
    """The labels of a video in a cell of the column labels; an empty cell has none."""
    labels = tuple(label.strip() for label in cell.split(SEPARATOR)) if cell else ()
    if not all(labels):
        raise ValueError(f"{where}: {short(cell)} has an empty label between {SEPARATOR}")
    return labels


def _header(
    path: Path, number: int, line: str, separator: str, *, labelled: bool
) -> tuple[list[str], dict[str, int]]:
    """Names of the columns of a table, and the column of each field that it has."""
    where = f"{path}:{number}"
    header = [cell.lower() for cell in _cells(where, line, separator)]
    repeated = [name for name in header if name and header.count(name) > 1]
    if repeated:
        raise ValueError(f"{where}: the header has {repeated[0]!r} twice; rename one of them")
    found = {
        field: header.index(next(name for name in names if name in header))
        for field, names in COLUMNS.items()
        if {*names} & {*header}
    }
    if {"label", "labels"} <= {*found}:
        raise ValueError(f"{where}: the header has both one label and labels; remove one of them")
    needed = (_PATHS, _LABELS) if labelled else (_PATHS,)
    for names in needed:
        if not names & {*header}:
            raise ValueError(
                f"{where}: the header {short(header)} has none of {', '.join(sorted(names))}. A "
                "list without a header is a .txt file with lines 'path label'"
            )
    return header, found


def _text_rows(path: Path, lines: Sequence[tuple[int, str]]) -> list[AnnotationRow]:
    """Rows of lines `path label` or `path frames label`; the format is that of the whole list."""
    lines = [(number, line.strip(" \t")) for number, line in lines]
    by_tabs = all("\t" in line for _, line in lines)
    marked = any(all(mark in line for _, line in lines) for mark in ",;")
    rows = []
    for number, line in lines:
        where = f"{path}:{number}"
        if marked or line.startswith('"') or re.search(rf"{_SUFFIX}\"?[,;]", line):
            _refuse(where, line, "has quotes, commas or semicolons, which need a header")
        pattern = _TABS_LINE if by_tabs else _FILE_LINE if _files(line) else _FOLDER_LINE
        found = pattern.fullmatch(line)
        if found is None:
            _refuse(where, line, "is not 'path label' or 'path frames label'")
        video, frames, label = found.groups()
        several_words = not by_tabs and re.search(_BLANKS, label)
        several_files = not by_tabs and _files(line) > 1
        if several_files or (several_words and (frames is not None or "/" in label)):
            _refuse(where, line, "can be divided at several places")
        rows.append(AnnotationRow(where, video, label, frames))
    counted = [row.frames is not None for row in rows]
    if any(counted) and not all(counted):
        odd = counted.index(sum(counted) * 2 <= len(counted))  # the rarer is more likely wrong
        _refuse(rows[odd].where, lines[odd][1], "has another number of columns than other lines")
    if len(rows) > 1 and [is_video(row.path) for row in rows] == [False] + [True] * (len(rows) - 1):
        _refuse(rows[0].where, lines[0][1], "looks like a header")
    return rows


def _files(line: str) -> int:
    """How many video files a line names before its end."""
    return len(re.findall(rf"{_SUFFIX}(?=[ \t])", line))


def _refuse(where: str, line: str, reason: str) -> None:
    raise ValueError(
        f"{where}: {short(line)} {reason}. Write a csv with the header path,label, or lines 'path "
        "label' or 'path frames label', with tabs between the columns of every line"
    )


def _checked(path: Path, rows: list[AnnotationRow]) -> list[AnnotationRow]:
    """The rows of a list; ValueError without any, or for a path or a label that cannot be one."""
    if not rows:
        raise ValueError(
            f"{path} contains no video; write lines as clip.mp4,push under the header path,label"
        )
    for row in rows:
        longest = max(row.path, *row.labels, key=len)
        if refusal := CELL_CHARACTERS.refusal(len(longest)):
            raise ValueError(f"{row.where}: the path or label {short(longest)} has {refusal}")
        for label in row.labels:
            if is_video(label) or is_several_numbers(label):
                raise ValueError(
                    f"{row.where}: label {short(label)} is a video or several numbers; expected "
                    f"the path first, then one label (several: a column labels, with {SEPARATOR})"
                )
    return rows


def short(text: object) -> str:
    """A text for messages: quoted, and cut after 100 characters."""
    shown = repr(text)
    return shown if len(shown) <= 100 else f"{shown[:97]}…"
