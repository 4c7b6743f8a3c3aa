"""Read annotations of labelled videos from a folder per class, a text list or a table.

* a folder with one sub-folder per class, of video files or of folders of frames;
* a text list, one video per line: `path label` or `path frames label`;
* a table with a header, separated by commas, tabs or semicolons: a path column, a label column,
  optionally frames, start, end, width, height and group. A column `labels` in place of the label
  column has any number of labels per video, separated by `|`.

`docs/data.md` has the grammar. Labels are class indices or class names. Pass the classes of the
training list when reading the validation list, so that both use the same indices.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from ffn.data.annotation_rows import AnnotationRow, is_number, short
from ffn.data.class_folders import read_class_folders
from ffn.data.lists import read_lines, read_list
from ffn.data.records import Label, Record
from ffn.labels import SEPARATOR
from ffn.limits import CLASSES


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
            f"{folder} has the single class {names.pop()!r}, from the name of its folder; expected "
            "two or more. Name the folder that holds the class folders, or a list "
            "(data.train=LIST.csv)"
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
        folder = source.with_suffix("")
        hint = f"; the folder {folder.name} exists: use its name" if folder.is_dir() else ""
        index = source.parent / "index"
        if (index / source.name).is_file() and (index / "classes.txt").is_file():
            hint = (
                f"; {index} holds an index: data.train=index/train.csv data.val=index/val.csv "
                "data.classes=index/classes.txt"
            )
        raise FileNotFoundError(
            f"annotations {source} do not exist; expected a text list, a csv, or a folder with one "
            f"sub-folder per class{hint} (data.train and data.val of a config)"
        )
    if not source.is_dir():
        return read_list(source, columns)
    if columns:
        raise ValueError(
            f"{source} is a folder and has no columns {', '.join(columns)}; expected a csv with "
            f"the header path,label,{','.join(columns)}"
        )
    return list(read_class_folders(source))


def _label_indices(
    rows: Sequence[AnnotationRow], classes: Sequence[str] | None
) -> tuple[list[Label], list[str]]:
    """Class index of each row, or indices of a row with several labels, and all class names."""
    if not isinstance(rows[0].label, tuple):
        return _single_indices(rows, classes)
    _check_separator(classes or ())
    each = [replace(row, label=label) for row in rows for label in row.label]
    if not each and classes is None:
        raise ValueError(
            f"{rows[0].where}: no video of the list has a label; expected labels separated by "
            f"{SEPARATOR} in the column labels, e.g. push{SEPARATOR}pull"
        )
    indices, names = _single_indices(each, classes)
    found = iter(indices)
    labels = []
    for row in rows:
        own = [*islice(found, len(row.label))]
        repeated = next((i for i in own if own.count(i) > 1), None)
        if repeated is not None:
            raise ValueError(
                f"{row.where}: label {names[repeated]!r} occurs twice in "
                f"{short(SEPARATOR.join(row.label))}; write it once"
            )
        labels.append(tuple(sorted(own)))
    return labels, names


def _check_separator(classes: Sequence[str]) -> None:
    """Raise ValueError for a class name that a list with several labels cannot contain."""
    for name in classes:
        if SEPARATOR in str(name):
            raise ValueError(
                f"class {name!r} contains {SEPARATOR}, which separates the labels of a video; "
                "rename the class in data.classes"
            )


def _single_indices(
    rows: Sequence[AnnotationRow], classes: Sequence[str] | None
) -> tuple[list[int], list[str]]:
    """Class index of each row with one label, and all class names."""
    if classes is not None:
        names = [str(name) for name in classes]
        return _known_labels(rows, names), names

    numeric = [is_number(row.label) for row in rows]
    if all(numeric):
        return _indices(rows)
    if any(numeric):
        odd = rows[numeric.index(sum(numeric) * 2 <= len(rows))]
        raise ValueError(
            f"{odd.where}: label {odd.label!r} differs in kind from other labels; expected class "
            "indices in every line or class names in every line. If class names are digits, "
            "give all of them (data.classes=FILE, one per line)"
        )
    names = sorted({row.label for row in rows})
    index = {name: i for i, name in enumerate(names)}
    return [index[row.label] for row in rows], names


def _indices(rows: Sequence[AnnotationRow]) -> tuple[list[int], list[str]]:
    """The labels of rows as class indices, which start at 0 and have no gaps."""
    remedy = "give all class names (data.classes=FILE, one per line), or write names as labels"
    for row in rows:
        # A larger index is taken for a name, e.g. a date.
        if len(row.label) > 9 or int(row.label) >= CLASSES.value:
            raise ValueError(
                f"{row.where}: label {row.label[:40]} is no class index; expected 0 … "
                f"{CLASSES.value - 1} (raise the limit with the environment variable "
                f"{CLASSES.variable}). If it is a name, {remedy}"
            )
    labels = [int(row.label) for row in rows]
    missing = sorted({*range(max(labels) + 1)} - {*labels})
    if missing:
        last = rows[labels.index(max(labels))]
        if missing == [*range(min(labels))]:
            remedy = f"subtract {min(labels)} from every label, or {remedy}"
        shown = f"{', '.join(map(str, missing[:5]))}{' …' if len(missing) > 5 else ''}"
        raise ValueError(
            f"{last.where}: label {last.label} makes {max(labels) + 1} classes, but no video has "
            f"label {shown}; class indices are 0, 1, 2, … without gaps. If the list is right, "
            f"{remedy}"
        )
    return labels, [str(i) for i in range(max(labels) + 1)]


def _known_labels(rows: Sequence[AnnotationRow], names: list[str]) -> list[int]:
    """Class index of each row, if all labels are known names, or all are indices."""
    index = {name: i for i, name in enumerate(names)}
    unknown = next((row for row in rows if row.label not in index), None)
    if unknown is None:
        return [index[row.label] for row in rows]
    are_indices = all(is_number(row.label) for row in rows)
    if not are_indices or any(map(is_number, names)):
        close = get_close_matches(unknown.label, names, n=1, cutoff=0.0)
        raise ValueError(
            f"{unknown.where}: label {unknown.label[:99]!r} is not one of the {len(names)} "
            f"classes; the closest is {close[0]!r}"
        )
    for row in rows:
        if len(row.label) > 9 or int(row.label) >= len(names):
            raise ValueError(
                f"{row.where}: label {row.label[:40]} is not one of the {len(names)} classes; "
                f"expected 0 … {len(names) - 1}"
            )
    return [int(row.label) for row in rows]


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
