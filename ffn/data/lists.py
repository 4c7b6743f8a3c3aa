"""Read the rows of a list of videos: a table with a header, or a text list.

`docs/data.md` has the grammar. A line that can be read in two ways is refused.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ffn.data.suffixes import VIDEO_SUFFIXES
from ffn.labels import SEPARATOR

# Accepted names of the columns of a table, in lower case; the first one found is used.
COLUMNS = {
    "path": ("path", "video", "video_path", "file", "filename"),
    "label": ("label", "class", "class_name", "category"),
    "labels": ("labels",),
    "frames": ("frames", "num_frames"),
    "start": ("start",),
    "end": ("end",),
}
TEXT = "text"  # the column of texts, in place of labels or beside them
_NAMES = {"group", TEXT, *(name for names in COLUMNS.values() for name in names)}
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufeff]")
_JSON = re.compile(r"\s*(\{\s*(\"|$)|\[\s*([\[{\"]|$))")  # the first line
# What the first lines of official lists hold, and the data sets of `ffn prepare` that read them.
_OFFICIAL = {
    r'"template"': "sthv2",
    r"\byoutube_id\b": "k400 (or k600, k700)",
    r"\blabel_id\b": "jester",
    r"^[0-9]+;": "sthv1 (or jester)",
    r"/v_\w+_g[0-9]+_c[0-9]+\.avi": "ucf101",
}
_SUFFIX = rf"(?i:{'|'.join(map(re.escape, VIDEO_SUFFIXES))})"
_BLANKS = r"[ \t]+"
# A line of a text list: path, number of frames if there is one, label.
_LINE = re.compile(rf"([^ \t]+|.+?{_SUFFIX}){_BLANKS}(?:([0-9]+){_BLANKS})?([^ \t]+)")
_TABS_LINE = re.compile(r"([^\t]+?) *\t[\t ]*(?:([0-9]+) *\t[\t ]*)?([^\t]+)")


@dataclass(frozen=True, slots=True)
class AnnotationRow:
    """One unparsed entry of annotations; a number that is not given is "".

    Attributes:
        where: File and line, for messages.
        path: As written.
        label: Class index or class name; in a list with several labels per video, all of them.
        frames: Number of frames.
        start: Start in seconds.
        end: End in seconds.
        others: Cells of the other columns by their names, such as `group`, the name of a group of
            related videos.
    """

    where: str
    path: str
    label: str | tuple[str, ...]
    frames: str = ""
    start: str = ""
    end: str = ""
    others: Mapping[str, str] = field(default_factory=dict)

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels: one, or any number in a list with several labels per video."""
        return self.label if isinstance(self.label, tuple) else (self.label,)


def is_video(path: str) -> bool:
    """Whether a path has a video suffix."""
    return path.lower().endswith(VIDEO_SUFFIXES)


def is_label(text: str) -> bool:
    """Whether a text can be one label: it is no video, nor several numbers."""
    return not is_video(text) and not re.fullmatch(rf"[0-9]+({_BLANKS}[0-9]+)+", text)


def read_lines(path: str | os.PathLike[str]) -> list[tuple[int, str]]:
    """Read a UTF-8 text file: the numbers and texts of its lines that are not blank.

    Raises:
        ValueError: if it holds other bytes or control characters; the message has the line.
    """
    data = Path(path).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in data
        encoding = "UTF-16" if is_utf16 else "WINDOWS-1252"
        raise ValueError(
            f"{path}:{line}: not UTF-8 ({error.reason}: {data[error.start]:#x}); expected UTF-8 "
            f"text. If it is text in {encoding}, convert it: iconv -f {encoding} -t UTF-8 OLD > "
            "NEW; Excel saves lists as 'CSV UTF-8'"
        ) from None
    lines = [line.rstrip("\n") for line in io.StringIO(text, newline=None)]
    for number, line in enumerate(lines, 1):
        if found := _CONTROL.search(line):
            raise ValueError(
                f"{path}:{number}: control character {found[0]!r}; expected UTF-8 text, not a "
                "binary file, UTF-16, or several files in one"
            )
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip(" \t")]


def read_list(path: Path, *, labelled: bool = True) -> list[AnnotationRow]:
    """Read the rows of a table or a text list.

    Args:
        path: The list.
        labelled: False reads videos without labels: a table with a column path, whose label is
            ignored, or one path per line. The rows then have "" as label.

    Raises:
        FileNotFoundError: if the list does not exist.
        ValueError: if it has no video, or a line is invalid.
    """
    lines = read_lines(path)
    if lines and _JSON.match(lines[0][1]):
        first = "\n".join(line for _, line in lines[:20])
        raise ValueError(f"{path}:{lines[0][0]}: JSON; {_expected(first)}")
    separator = _separator(path, lines[0][1]) if lines else None
    if separator is not None:
        rows = [*_table_rows(path, lines, separator, labelled)]
    elif labelled:
        rows = _text_rows(path, lines)
    else:
        rows = [AnnotationRow(f"{path}:{number}", line.strip(), "") for number, line in lines]
    if not rows:
        raise ValueError(
            f"{path} contains no video; write lines as clip.mp4,push under the header path,label"
        )
    for row in rows:
        _check_row(row, labelled)
    return rows


def _separator(path: Path, line: str) -> str | None:
    """The character between the columns of a table; None if the first line is no header."""
    for separator in ",\t;":
        cells = {cell.strip(' \t"').lower() for cell in line.split(separator)}
        if cells & {*COLUMNS["path"]} or (len(cells) > 1 and cells & _NAMES):
            return separator
    return "," if path.suffix.lower() == ".csv" else None


def _table_rows(
    path: Path, lines: Sequence[tuple[int, str]], separator: str, labelled: bool
) -> Iterator[AnnotationRow]:
    header, columns = _header(path, *lines[0], separator, labelled)
    others = {name: i for i, name in enumerate(header) if name and i not in columns.values()}
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
        values = {name: cells[column] for name, column in columns.items()}
        if several := values.pop("labels", ""):
            values["label"] = tuple(label.strip() for label in several.split(SEPARATOR))
        values.setdefault("label", ())
        further = {name: cells[column] for name, column in others.items()}
        yield AnnotationRow(where, **values if labelled else values | {"label": ""}, others=further)


def _cells(where: str, line: str, separator: str) -> list[str]:
    """The cells of a line; blanks around them do not count."""
    try:
        table = csv.reader([line], delimiter=separator, strict=True, skipinitialspace=True)
        return [cell.strip() for cell in next(table)]
    except csv.Error as error:
        cause = str(error).replace("\t", "tab")
        raise ValueError(f"{where}: {cause} in {short(line)}; a cell ends in its line") from None


def _header(
    path: Path, number: int, line: str, separator: str, labelled: bool
) -> tuple[list[str], dict[str, int]]:
    """Names of the columns of a table, and the column of each field that it has."""
    header = [cell.lower() for cell in _cells(f"{path}:{number}", line, separator)]
    found = {
        field: header.index(next(name for name in names if name in header))
        for field, names in COLUMNS.items()
        if {*names} & {*header}
    }
    repeated = any(header.count(name) > 1 for name in header if name)
    kinds = len({"label", "labels"} & found.keys())
    unlabelled = kinds > 1 or (kinds == 0 and TEXT not in header)
    if repeated or "path" not in found or (labelled and unlabelled):
        raise ValueError(f"{path}:{number}: the header is {short(header)}; {_expected(line)}")
    return header, found


def _expected(text: str) -> str:
    """What a list holds, after the command for a text of an official list."""
    names = next((names for like, names in _OFFICIAL.items() if re.search(like, text)), "")
    command = names and f"`ffn prepare {names} --root FOLDER` reads such official lists; "
    return (
        f"{command}expected a table with the columns path and label, or labels (several, separated "
        f"by {SEPARATOR}) or text, each once, for parts of videos start and end in seconds; or a "
        ".txt file with lines 'path label' or 'path frames label', with tabs between all columns"
    )


def _text_rows(path: Path, lines: Sequence[tuple[int, str]]) -> list[AnnotationRow]:
    """Rows of lines `path label` or `path frames label`; the format is that of the whole list.

    If every line has tabs, they divide it. Otherwise blanks do; then a path with blanks ends in the
    suffix of a video, and a label has none.
    """
    lines = [(number, line.strip(" \t")) for number, line in lines]
    by_tabs = all("\t" in line for _, line in lines)
    rows = []
    for number, line in lines:
        where = f"{path}:{number}"
        found = (_TABS_LINE if by_tabs else _LINE).fullmatch(line)
        files = re.findall(rf"{_SUFFIX}(?=[ \t])", line)
        is_table = line.startswith('"') or (not by_tabs and re.search("[,;]", line))
        if found is None or is_table or (len(files) > 1 and not by_tabs):
            _refuse(where, line, "is not 'path label' or 'path frames label'")
        video, frames, label = found.groups(default="")
        rows.append(AnnotationRow(where, video, label, frames))
        if bool(frames) != bool(rows[0].frames):
            _refuse(where, line, "has another number of columns than the first line")
    for row in rows[:1]:
        is_name = row.label.lower() in (*COLUMNS["label"], *COLUMNS["labels"])
        others_are_files = len(rows) > 1 and all(is_video(other.path) for other in rows[1:])
        if (is_name or others_are_files) and not is_video(row.path):
            _refuse(row.where, lines[0][1], "looks like a header")
    return rows


def _refuse(where: str, line: str, reason: str) -> None:
    raise ValueError(f"{where}: {short(line)} {reason}; {_expected(line)}")


def _check_row(row: AnnotationRow, labelled: bool) -> None:
    """Raise ValueError for a path or a label that cannot be one."""
    labels = row.labels if labelled else ()
    if "" in (row.path, *labels):
        raise ValueError(f"{row.where}: the path or a label is empty")
    for label in labels:
        if not is_label(label):
            raise ValueError(
                f"{row.where}: label {short(label)} is a video or several numbers; expected "
                f"the path first, then one label (several: a column labels, with {SEPARATOR})"
            )


def short(text: object) -> str:
    """A text for messages: quoted, and cut after 100 characters."""
    shown = repr(text)
    return shown if len(shown) <= 100 else f"{shown[:97]}…"
