"""Annotation lists as the field writes them, read into records.

* a folder with one sub-folder per class, of video files or of folders of frames;
* a text list, one video per line: `path label` or `path frames label` (paths may hold spaces);
* a csv with a header: a path column, a label column, optionally frames, start and end.

Labels are class indices or class names. A validation list is read with the classes of the training
list, so that both count the same way.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

VIDEO_SUFFIXES = (
    *(".3gp", ".avi", ".flv", ".gif", ".m4v", ".mkv", ".mov"),
    *(".mp4", ".mpeg", ".mpg", ".ts", ".webm", ".wmv"),
)

# Header of a csv, lower case: the first column that exists is taken.
_COLUMNS = {
    "path": ("path", "video", "video_path", "file", "filename"),
    "label": ("label", "class", "class_name", "category"),
    "frames": ("frames", "num_frames"),
    "start": ("start",),
    "end": ("end",),
}


@dataclass(frozen=True, slots=True)
class Record:
    """One labelled video.

    Attributes:
        path: Video file or folder of frames.
        label: Class index.
        frames: Number of frames of a folder, or None to count them; a video file counts its own.
        start: Start of the part to use, in seconds, or None for the start of the video.
        end: End of the part to use, in seconds, or None for the end of the video.
    """

    path: str
    label: int
    frames: int | None = None
    start: float | None = None
    end: float | None = None


@dataclass(frozen=True, slots=True)
class _Row:
    """One line as it was written; `where` names it in errors."""

    where: str
    path: str
    label: str
    frames: str | None = None
    start: str | None = None
    end: str | None = None


def read_annotations(
    source: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    classes: Sequence[str] | str | os.PathLike[str] | None = None,
) -> tuple[list[Record], list[str]]:
    """Read an annotation list or a folder per class.

    Args:
        source: Text list, csv (named `.csv`), or a folder with one sub-folder per class.
        root: Folder that relative paths start from; default the folder of `source`.
        classes: Class names in the order of their indices, or a text file with one name per line.
            Default: the names found, sorted; for a list with indices, "0", "1", ….

    Returns:
        The records in the order of the list, and the class names.

    Raises:
        FileNotFoundError: if `source` or the file of `classes` does not exist.
        ValueError: if a line cannot be read in exactly one way, or a label is unknown; the message
            names the file and the line.
    """
    source = Path(source)
    if not source.exists():
        folder = source.with_suffix("")
        hint = f"; there is a folder {folder.name}: name that" if folder.is_dir() else ""
        raise FileNotFoundError(
            f"annotations {source} do not exist: name a list, a csv, or a folder with one folder "
            f"per class{hint} (data.train and data.val of a config)"
        )
    names = read_classes(classes) if isinstance(classes, str | os.PathLike) else classes
    if source.is_dir():
        if root is not None:
            raise ValueError(f"{source} is a folder per class, which needs no root; got {root}")
        rows = list(_folder_rows(source))
    elif source.suffix.lower() == ".csv":
        rows = list(_csv_rows(source))
    else:
        rows = list(_text_rows(source))
    if not rows:
        raise ValueError(f"{source} lists no video")

    labels, names = _label_indices(rows, names)
    base = source.parent if root is None else Path(root)
    records = [_record(row, label, base) for row, label in zip(rows, labels, strict=True)]
    return records, names


def read_classes(path: str | os.PathLike[str]) -> list[str]:
    """Read class names from a text file, one per line, in the order of their indices.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if there is no name or one stands twice.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"file of classes {path} does not exist")
    lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    names = [line.strip() for line in lines if line.strip()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or twice:
        raise ValueError(f"{path}: " + (f"{twice[0]!r} stands twice" if twice else "no class name"))
    return names


def _folder_rows(folder: Path) -> Iterator[_Row]:
    classes = [entry for entry in sorted(folder.iterdir()) if _visible_folder(entry)]
    if not classes:
        raise ValueError(f"{folder} has no sub-folders; expected one per class")
    for one in classes:
        videos = [
            entry
            for entry in sorted(one.iterdir())
            if _visible_folder(entry) or entry.suffix.lower() in VIDEO_SUFFIXES
        ]
        if not videos:
            raise ValueError(
                f"{one} holds no video; expected files ({' '.join(VIDEO_SUFFIXES)}) "
                "or folders of frames"
            )
        for video in videos:
            yield _Row(str(video), os.path.abspath(video), one.name)


def _visible_folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def _csv_rows(path: Path) -> Iterator[_Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        table = csv.reader(file)
        header = [name.strip().lower() for name in next(table, [])]
        columns = {
            what: next((header.index(name) for name in names if name in header), None)
            for what, names in _COLUMNS.items()
        }
        for what in ("path", "label"):
            if columns[what] is None:
                raise ValueError(
                    f"{path}:1: no column for the {what} in the header {header}; "
                    f"expected one of {', '.join(_COLUMNS[what])}"
                )
        for cells in table:
            if not any(cell.strip() for cell in cells):
                continue
            where = f"{path}:{table.line_num}"
            if len(cells) != len(header):
                raise ValueError(f"{where}: {len(cells)} cells under {len(header)} columns")
            values = {
                what: cells[place].strip() or None
                for what, place in columns.items()
                if place is not None
            }
            for what in ("path", "label"):
                if values[what] is None:
                    raise ValueError(f"{where}: the {what} is empty")
            yield _Row(where, **values)


def _text_rows(path: Path) -> Iterator[_Row]:
    """Lines `path label` or `path frames label`, split from the right.

    A path may end in " 12", so the form is that of the whole list: three columns if every line has
    a number before its label, two if none has.
    """
    text = path.read_text(encoding="utf-8-sig")
    lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    counted = {n: len(p := line.rsplit(None, 2)) == 3 and p[1].isdigit() for n, line in lines}
    if any(counted.values()) and not all(counted.values()):
        # The rarer form is the more likely slip.
        rare = sum(counted.values()) * 2 <= len(counted)
        n, line = next((n, line) for n, line in lines if counted[n] == rare)
        raise ValueError(
            f"{path}:{n}: {line!r} {'has' if rare else 'lacks'} a number before the label, unlike "
            f"other lines; expected 'path label' or 'path frames label' throughout. If the number "
            "is part of a path, write the list as a csv with the header path,label"
        )
    for n, line in lines:
        where = f"{path}:{n}"
        parts = line.rsplit(None, 2 if counted[n] else 1)
        if len(parts) < 2:
            raise ValueError(f"{where}: {line!r}; expected 'path label' or 'path frames label'")
        yield _Row(where, parts[0], parts[-1], parts[1] if counted[n] else None)


def _label_indices(
    rows: Sequence[_Row], classes: Sequence[str] | None
) -> tuple[list[int], list[str]]:
    """Class index of every row, and all class names."""
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
            f"{odd.where}: label {odd.label!r}, while other lines differ in kind; expected class "
            "indices throughout or class names throughout. Give `classes` if names are digits"
        )
    names = sorted({row.label for row in rows})
    return [names.index(row.label) for row in rows], names


def _known_label(row: _Row, names: list[str], index: dict[str, int]) -> int:
    if row.label in index:
        return index[row.label]
    if row.label.isdigit():
        if int(row.label) < len(names):
            return int(row.label)
        raise ValueError(
            f"{row.where}: label {row.label}, but there are {len(names)} classes; "
            f"expected 0 … {len(names) - 1}"
        )
    close = get_close_matches(row.label, names, n=1, cutoff=0.0)
    raise ValueError(
        f"{row.where}: label {row.label!r} is not among the {len(names)} classes; "
        f"the closest is {close[0]!r}"
    )


def _record(row: _Row, label: int, base: Path) -> Record:
    frames = None if row.frames is None else _number(row, "frames", row.frames, int)
    start = None if row.start is None else _number(row, "start", row.start, float)
    end = None if row.end is None else _number(row, "end", row.end, float)
    if frames is not None and frames < 1:
        raise ValueError(f"{row.where}: {frames} frames; expected at least 1")
    if start is not None and end is not None and start >= end:
        raise ValueError(f"{row.where}: start {start} s is not before end {end} s")
    return Record(os.path.join(base, row.path), label, frames, start, end)


def _number(row: _Row, what: str, text: str, kind: type) -> int | float:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{row.where}: {what} is {text!r}; expected a number") from None
