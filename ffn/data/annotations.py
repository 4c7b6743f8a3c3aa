"""Read annotations of labelled videos from a folder per class, a text list or a table.

* a folder with one sub-folder per class, of video files or of folders of frames;
* a text list, one video per line: `path label` or `path frames label`;
* a table with a header, separated by commas, tabs or semicolons: a path column, a label column,
  optionally frames, start, end and group. A column `labels` in place of the label
  column has any number of labels per video, separated by `|`.

`docs/data.md` has the grammar. Labels are class indices or class names. Pass the classes of the
training list when reading the validation list, so that both use the same indices.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from ffn.data.lists import AnnotationRow, is_number, read_lines, read_list, short
from ffn.data.records import Label, Record
from ffn.data.suffixes import (
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    has_tool_file,
    is_system_name,
    is_tool_folder,
)
from ffn.labels import SEPARATOR
from ffn.limits import CLASSES

LIST_SUFFIXES = (".csv", ".tsv", ".txt")
OTHER_TEXTS = ("classes", "licence", "license", "readme")  # names of text files that are no lists
NAMES_REMEDY = "If the list is right, give all class names (data.classes=FILE, one per line)"


def read_annotations(
    source: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    classes: Sequence[str] | str | os.PathLike[str] | None = None,
) -> tuple[list[Record], list[str]]:
    """Read an annotation list or a folder per class.

    Args:
        source: Text list, table with a header, or folder with one sub-folder per class.
        root: Folder that relative paths start from; default: the folder of `source`.
        classes: Class names in the order of their indices, or a text file with one name per line.
            Default: the names found, sorted; for a list with indices, which must have no gaps,
            "0", "1", ….

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
    if source.is_dir() and classes is None:
        check_several_classes(source, rows)
    return rows_to_records(rows, source.parent if root is None else root, classes)


def check_several_classes(folder: Path, rows: Sequence[AnnotationRow]) -> None:
    """Raise ValueError for a folder per class that has a single class."""
    names = {label for row in rows for label in row.labels}
    if len(names) == 1:
        raise ValueError(
            f"{folder} has the single class {names.pop()!r}; expected two or more. Name the folder "
            "that holds the class folders, or a list (data.train=LIST.csv)"
        )


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
    records = [to_record(row, label, base) for row, label in zip(rows, labels, strict=True)]
    return records, names


def read_classes(path: str | os.PathLike[str]) -> list[str]:
    """Read class names from a text file, one per line, in the order of their indices.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it contains no name, or a name more than once.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"file of class names {path} does not exist")
    names = [line.strip() for _, line in read_lines(path)]
    repeated = sorted(name for name, times in Counter(names).items() if times > 1)
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
        folder, index = source.with_suffix(""), source.parent / "index" / source.name
        others = [str(other) for other in (folder, index) if other.exists()]
        hint = f"; {others[0]} exists: use its name" if others else ""
        raise FileNotFoundError(
            f"annotations {source} do not exist; expected a text list, a csv, or a folder with one "
            f"sub-folder per class{hint} (data.train and data.val of a config)"
        )
    if not source.is_dir():
        return read_list(source, columns)
    if columns:
        raise ValueError(f"{source} is a folder and has no columns {', '.join(columns)}; use a csv")
    return _read_class_folders(source)


def _read_class_folders(folder: Path) -> list[AnnotationRow]:
    """The videos of a folder per class, by class and name.

    Hidden folders and folders that a tool wrote are left out. A list beside the classes is refused.
    """
    entries = _entries(folder)
    lists = [e for e in entries if e.suffix.lower() in LIST_SUFFIXES and e.is_file()]
    lists = [e for e in lists if e.stem.lower() not in OTHER_TEXTS]
    if lists:
        raise ValueError(
            f"{folder} holds {lists[0].name} beside its class folders. To read the list, give its "
            f"name (data.root={folder} data.train={lists[0].name}); else move the list away"
        )
    classes = [entry for entry in entries if entry.is_dir() and not is_tool_folder(entry)]
    if not classes:
        raise ValueError(f"{folder} has no sub-folders of videos; expected one per class")
    return [row for entry in classes for row in _class_videos(entry)]


def _class_videos(folder: Path) -> list[AnnotationRow]:
    """The videos of one class: files, and folders of frames."""
    entries = _entries(folder)
    folders = [entry for entry in entries if entry.is_dir()]
    files = [e for e in entries if e.suffix.lower() in VIDEO_SUFFIXES and not e.is_dir()]
    if not files + folders:
        raise ValueError(f"{folder} contains no video; expected video files or folders of frames")
    # A class of folders may hold many thousand of them.
    written = [e for e in (folders if files else folders[:1]) if has_tool_file(e)]
    if written or (folders and not _holds_images(folders[0])):
        raise ValueError(
            f"{(written or folders)[0]} is no folder of frames; expected CLASS/VIDEO in "
            f"{folder.parent}. Move it away, or give the folder above the classes, e.g. "
            f"data.train={folder.name}"
        )
    videos = sorted([*files, *folders])
    return [AnnotationRow(str(video), os.path.abspath(video), folder.name) for video in videos]


def _entries(folder: Path) -> list[Path]:
    return [entry for entry in sorted(folder.iterdir()) if not is_system_name(entry.name)]


def _holds_images(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(entry.name.lower().endswith(IMAGE_SUFFIXES) for entry in entries)


def _label_indices(
    rows: Sequence[AnnotationRow], classes: Sequence[str] | None
) -> tuple[list[Label], list[str]]:
    """Class index of each row, or indices of a row with several labels, and all class names."""
    each = [(row.where, label) for row in rows for label in row.labels]
    if not isinstance(rows[0].label, tuple):
        return _class_indices(each, classes)
    if not each and classes is None:
        raise ValueError(f"{rows[0].where}: no video of the list has a label")
    for name in classes or ():
        if SEPARATOR in str(name):
            raise ValueError(f"class {name!r} contains {SEPARATOR}; rename the class")
    indices, names = _class_indices(each, classes)
    found, labels = iter(indices), []
    for row in rows:
        own = tuple(sorted(islice(found, len(row.labels))))
        if len({*own}) < len(own):
            raise ValueError(f"{row.where}: {SEPARATOR.join(row.labels)} has a label twice")
        labels.append(own)
    return labels, names


def _class_indices(
    labels: Sequence[tuple[str, str]], classes: Sequence[str] | None
) -> tuple[list[int], list[str]]:
    """Class index of each label, given with its place, and all class names."""
    names = None if classes is None else [str(name) for name in classes]
    numeric = [is_number(label) for _, label in labels]
    if all(numeric) and not any(map(is_number, names or ())):
        return _numbered(labels, names)
    if names is None:
        if any(numeric):
            where, label = labels[numeric.index(sum(numeric) * 2 <= len(numeric))]
            raise ValueError(
                f"{where}: label {label!r} differs in kind from other labels; expected class "
                f"indices in every line or class names in every line. {NAMES_REMEDY}"
            )
        names = sorted({label for _, label in labels})
    index = {name: i for i, name in enumerate(names)}
    for where, label in labels:
        if label not in index:
            close = get_close_matches(label, names, n=1, cutoff=0.0)
            raise ValueError(
                f"{where}: label {short(label)} is not one of the {len(names)} classes; the "
                f"closest is {close[0]!r}"
            )
    return [index[label] for _, label in labels], names


def _numbered(
    labels: Sequence[tuple[str, str]], names: list[str] | None
) -> tuple[list[int], list[str]]:
    """Labels that are class indices, which without class names have no gaps."""
    count = CLASSES.value if names is None else len(names)
    for where, label in labels:
        if len(label) > 9 or int(label) >= count:
            expected = f"expected 0 … {count - 1}"
            raise ValueError(f"{where}: label {short(label)}; {expected}. {NAMES_REMEDY}")
    indices = [int(label) for _, label in labels]
    largest = max(indices, default=-1)
    missing = {*range(largest + 1)} - {*indices}
    if names is None and missing:
        where, label = labels[indices.index(largest)]
        raise ValueError(
            f"{where}: label {label} makes {largest + 1} classes, but no video has label "
            f"{min(missing)}; class indices have no gaps. {NAMES_REMEDY}"
        )
    return indices, names or [str(i) for i in range(largest + 1)]


def to_record(row: AnnotationRow, label: Label, base: str | os.PathLike[str]) -> Record:
    """The record of a row.

    Args:
        row: Of a list.
        label: Its class index, or those of several labels.
        base: Folder that relative paths start from.

    Raises:
        ValueError: if a number is invalid.
    """
    frames = _number(row, "frames", int)
    start, end = _number(row, "start", float), _number(row, "end", float)
    if frames is not None and frames < 1:
        raise ValueError(f"{row.where}: {frames} frames; expected at least 1")
    if start is not None and end is not None and start >= end:
        raise ValueError(f"{row.where}: start {start} s is not before end {end} s")
    return Record(os.path.join(base, row.path), label, frames, start, end)


def _number(row: AnnotationRow, field: str, kind: type) -> int | float | None:
    """The number in a cell; None if the cell is empty."""
    text = getattr(row, field)
    if text is None:
        return None
    try:
        number = kind(text)
        if 0 <= number < 2**31:  # neither infinite nor NaN
            return number
    except ValueError:
        pass
    kinds = "an integer" if kind is int else "seconds"
    raise ValueError(f"{row.where}: {field} is {text[:40]!r}; expected a number, {kinds} from 0")
