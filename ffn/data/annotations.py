"""Read annotations of labelled videos from a folder per class, a text list or a csv.

* a folder with one sub-folder per class, of video files or of folders of frames;
* a text list, one video per line: `path label` or `path frames label` (paths may contain spaces);
* a csv with a header: a path column, a label column, optionally frames, start and end.

Labels are class indices or class names. Pass the classes of the training list when reading the
validation list, so that both use the same indices.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from ffn.data.records import Record

VIDEO_SUFFIXES = (
    *(".3gp", ".avi", ".flv", ".gif", ".m4v", ".mkv", ".mov"),
    *(".mp4", ".mpeg", ".mpg", ".ts", ".webm", ".wmv"),
)

# Accepted names of the columns of a csv, in lower case; the first one found is used.
_COLUMNS = {
    "path": ("path", "video", "video_path", "file", "filename"),
    "label": ("label", "class", "class_name", "category"),
    "frames": ("frames", "num_frames"),
    "start": ("start",),
    "end": ("end",),
}


@dataclass(frozen=True, slots=True)
class AnnotationRow:
    """One unparsed entry of annotations.

    Attributes:
        where: File and line, for messages.
        path: As written.
        label: Class index or class name.
        frames: Number of frames, or None.
        start: Start in seconds, or None.
        end: End in seconds, or None.
        extra: Cells of the other columns that the reader asked for, in that order.
    """

    where: str
    path: str
    label: str
    frames: str | None = None
    start: str | None = None
    end: str | None = None
    extra: tuple[str, ...] = ()


def read_annotations(
    source: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    classes: Sequence[str] | str | os.PathLike[str] | None = None,
) -> tuple[list[Record], list[str]]:
    """Read an annotation list or a folder per class.

    Args:
        source: Text list, csv (suffix `.csv`), or folder with one sub-folder per class.
        root: Folder that relative paths start from; default: the folder of `source`.
        classes: Class names in the order of their indices, or a text file with one name per line.
            Default: the names found, sorted; for a list with indices, "0", "1", ….

    Returns:
        The records in the order of the list, and the class names.

    Raises:
        FileNotFoundError: if `source` or the file of `classes` does not exist.
        ValueError: if a line is invalid or ambiguous, or a label is unknown; the message contains
            the file and the line.
    """
    source = Path(source)
    if source.is_dir() and root is not None:
        raise ValueError(f"root is {root}; {source} is a folder per class and takes no root")
    rows = read_annotation_rows(source)
    return rows_to_records(rows, source.parent if root is None else root, classes)


def rows_to_records(
    rows: Sequence[AnnotationRow],
    root: str | os.PathLike[str],
    classes: Sequence[str] | str | os.PathLike[str] | None = None,
) -> tuple[list[Record], list[str]]:
    """Parse the rows of annotations; see `read_annotations`.

    Args:
        rows: From `read_annotation_rows`, at least one.
        root: Folder that relative paths start from.
        classes: See `read_annotations`.

    Returns:
        The records in the order of the rows, and the class names.

    Raises:
        FileNotFoundError: if the file of `classes` does not exist.
        ValueError: if a number is invalid, or a label is unknown.
    """
    names = read_classes(classes) if isinstance(classes, str | os.PathLike) else classes
    labels, names = _label_indices(rows, names)
    base = Path(root)
    records = [_to_record(row, label, base) for row, label in zip(rows, labels, strict=True)]
    return records, names


def read_classes(path: str | os.PathLike[str]) -> list[str]:
    """Read class names from a text file, one per line, in the order of their indices.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it contains no name, or a name more than once.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"file of class names {path} does not exist")
    lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    names = [line.strip() for line in lines if line.strip()]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if not names:
        raise ValueError(f"{path} contains no class name")
    if repeated:
        raise ValueError(f"{path} contains {repeated[0]!r} more than once")
    return names


def read_annotation_rows(
    source: str | os.PathLike[str], columns: Sequence[str] = ()
) -> list[AnnotationRow]:
    """Read the rows of annotations without parsing their labels and numbers.

    Args:
        source: See `read_annotations`.
        columns: Names of columns of a csv whose cells each row also gets, as `extra`.

    Raises:
        FileNotFoundError: if `source` does not exist.
        ValueError: if it has no row, a line is invalid, or a column is missing.
    """
    source = Path(source)
    if not source.exists():
        folder = source.with_suffix("")
        hint = f"; the folder {folder.name} exists: use its name" if folder.is_dir() else ""
        raise FileNotFoundError(
            f"annotations {source} do not exist; expected a text list, a csv, or a folder with one "
            f"sub-folder per class{hint} (data.train and data.val of a config)"
        )
    is_csv = source.suffix.lower() == ".csv" and not source.is_dir()
    if columns and not is_csv:
        raise ValueError(
            f"{source} is not a csv and has no columns {', '.join(columns)}; expected a csv with "
            f"the header path,label,{','.join(columns)}"
        )
    if is_csv:
        rows = list(_csv_rows(source, columns))
    else:
        rows = list(_folder_rows(source) if source.is_dir() else _text_rows(source))
    if not rows:
        raise ValueError(f"{source} contains no video")
    return rows


def _folder_rows(folder: Path) -> Iterator[AnnotationRow]:
    classes = [entry for entry in sorted(folder.iterdir()) if _visible_folder(entry)]
    if not classes:
        raise ValueError(f"{folder} has no sub-folders; expected one per class")
    for class_folder in classes:
        videos = [
            entry
            for entry in sorted(class_folder.iterdir())
            if _visible_folder(entry) or entry.suffix.lower() in VIDEO_SUFFIXES
        ]
        if not videos:
            raise ValueError(
                f"{class_folder} contains no video; expected files ({' '.join(VIDEO_SUFFIXES)}) "
                "or folders of frames"
            )
        for video in videos:
            yield AnnotationRow(str(video), os.path.abspath(video), class_folder.name)


def _visible_folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def _csv_rows(path: Path, extra: Sequence[str]) -> Iterator[AnnotationRow]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        table = csv.reader(file)
        header = [name.strip().lower() for name in next(table, [])]
        columns = _find_columns(path, header)
        others = [_find_column(path, header, name) for name in extra]
        for cells in table:
            if not any(cell.strip() for cell in cells):
                continue
            where = f"{path}:{table.line_num}"
            if len(cells) != len(header):
                raise ValueError(f"{where}: {len(cells)} cells, but the header has {len(header)}")
            values = {field: cells[column].strip() or None for field, column in columns.items()}
            for field in ("path", "label"):
                if values[field] is None:
                    raise ValueError(f"{where}: the {field} is empty")
            yield AnnotationRow(where, **values, extra=tuple(cells[i].strip() for i in others))


def _find_columns(path: Path, header: list[str]) -> dict[str, int]:
    """Column of each field that a csv has."""
    found = {
        field: next((header.index(name) for name in names if name in header), None)
        for field, names in _COLUMNS.items()
    }
    for field in ("path", "label"):
        if found[field] is None:
            raise ValueError(
                f"{path}:1: no column for the {field} in the header {header}; "
                f"expected one of {', '.join(_COLUMNS[field])}"
            )
    return {field: column for field, column in found.items() if column is not None}


def _find_column(path: Path, header: list[str], name: str) -> int:
    if name.lower() in header:
        return header.index(name.lower())
    close = get_close_matches(name.lower(), header, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise ValueError(f"{path}:1: no column {name!r}; the columns are {', '.join(header)}{hint}")


def _text_rows(path: Path) -> Iterator[AnnotationRow]:
    """Split lines `path label` or `path frames label` from the right.

    A path may end in " 12". The format is therefore decided for the whole list: three columns if
    every line has a number before its label, two if no line has one.
    """
    text = path.read_text(encoding="utf-8-sig")
    lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    counted = {n: len(p := line.rsplit(None, 2)) == 3 and p[1].isdigit() for n, line in lines}
    if any(counted.values()) and not all(counted.values()):
        # The rarer format is the more likely mistake.
        rare = sum(counted.values()) * 2 <= len(counted)
        n, line = next((n, line) for n, line in lines if counted[n] == rare)
        raise ValueError(
            f"{path}:{n}: {line!r} has {'a' if rare else 'no'} number before the label, unlike "
            "other lines; expected 'path label' or 'path frames label' in every line. If the "
            "number is part of a path, write the list as a csv with the header path,label"
        )
    for n, line in lines:
        where = f"{path}:{n}"
        parts = line.rsplit(None, 2 if counted[n] else 1)
        if len(parts) < 2:
            raise ValueError(f"{where}: {line!r}; expected 'path label' or 'path frames label'")
        yield AnnotationRow(where, parts[0], parts[-1], parts[1] if counted[n] else None)


def _label_indices(
    rows: Sequence[AnnotationRow], classes: Sequence[str] | None
) -> tuple[list[int], list[str]]:
    """Class index of each row, and all class names."""
    if classes is not None:
        names = [str(name) for name in classes]
        index = {name: i for i, name in enumerate(names)}
        return [_known_label(row, names, index) for row in rows], names

    numeric = [row.label.isdigit() for row in rows]
    if all(numeric):
        labels = [int(row.label) for row in rows]
        return labels, [str(i) for i in range(max(labels) + 1)]
    if any(numeric):
        odd = rows[numeric.index(sum(numeric) * 2 <= len(rows))]
        raise ValueError(
            f"{odd.where}: label {odd.label!r} differs in kind from other labels; expected class "
            "indices in every line or class names in every line. Pass `classes` if class names "
            "are digits"
        )
    names = sorted({row.label for row in rows})
    return [names.index(row.label) for row in rows], names


def _known_label(row: AnnotationRow, names: list[str], index: dict[str, int]) -> int:
    if row.label in index:
        return index[row.label]
    if row.label.isdigit():
        if int(row.label) < len(names):
            return int(row.label)
        raise ValueError(
            f"{row.where}: label {row.label} is not one of the {len(names)} classes; "
            f"expected 0 … {len(names) - 1}"
        )
    close = get_close_matches(row.label, names, n=1, cutoff=0.0)
    raise ValueError(
        f"{row.where}: label {row.label!r} is not one of the {len(names)} classes; "
        f"the closest is {close[0]!r}"
    )


def _to_record(row: AnnotationRow, label: int, base: Path) -> Record:
    frames = None if row.frames is None else _parse_number(row, "frames", int)
    start = None if row.start is None else _parse_number(row, "start", float)
    end = None if row.end is None else _parse_number(row, "end", float)
    if frames is not None and frames < 1:
        raise ValueError(f"{row.where}: {frames} frames; expected at least 1")
    if start is not None and end is not None and start >= end:
        raise ValueError(f"{row.where}: start {start} s is not before end {end} s")
    return Record(os.path.join(base, row.path), label, frames, start, end)


def _parse_number(row: AnnotationRow, field: str, kind: type) -> int | float:
    text = getattr(row, field)
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{row.where}: {field} is {text!r}; expected a number") from None
