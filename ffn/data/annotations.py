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
import re
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from ffn.data.lists import AnnotationRow, read_lines, read_list, short
from ffn.data.records import Label, Record
from ffn.data.suffixes import is_frame_folder, is_tool_folder, videos_in, visible
from ffn.label_kinds import LABEL_KINDS
from ffn.labels import SEPARATOR, canonical
from ffn.limits import CLASSES

NAMES_REMEDY = "If the list is right, give all class names (data.classes=FILE, one per line)"
# The first lines of JSON, YAML, comments and headers of tables, which are no class names.
_NO_CLASS = re.compile(
    r"(?i)\{|#|\[([\[{\"]|$)|- |---|[0-9]+: |.*:$|"
    r"\"?(id|index|names?|class(es|_name)?|labels?|category)\"?([,;\t]|$)"
)


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
    rows = read_annotation_rows(source)
    return rows_to_records(rows, source.parent if root is None else root, classes)


def rows_to_records(
    rows: Sequence[AnnotationRow],
    root: str | os.PathLike[str],
    classes: Sequence[str] | str | os.PathLike[str] | None = None,
    kind: str = "single",
) -> tuple[list[Record], list[str]]:
    """Parse the rows of annotations, at least one; see `read_annotations`.

    `kind` is one of `ffn.label_kinds.LABEL_KINDS`, which may read other columns of the rows.
    """
    names = read_classes(classes) if isinstance(classes, str | os.PathLike) else classes
    read = getattr(LABEL_KINDS[kind], "read", _label_indices)
    labels, names = read(rows, names)
    records = [to_record(row, label, root) for row, label in zip(rows, labels, strict=True)]
    return records, names


def read_classes(path: str | os.PathLike[str]) -> list[str]:
    """Read class names from a text file, one per line, in the order of their indices.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it contains no name, or a name more than once, or is no such text file.
    """
    names = [canonical(line.strip()) for _, line in read_lines(path)]
    if names and _NO_CLASS.match(names[0]):
        raise ValueError(
            f"{path}: the first line is {short(names[0])}; expected a text file with one class "
            "name per line, without a header, in the order of the class indices"
        )
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise ValueError(f"{path} contains {repeated[0]!r} more than once")
    if not names:
        raise ValueError(f"{path} contains no class name")
    return names


def read_annotation_rows(
    source: str | os.PathLike[str], *, labelled: bool = True
) -> list[AnnotationRow]:
    """Read the rows of annotations without parsing their labels and numbers.

    Args:
        source: See `read_annotations`.
        labelled: See `read_list`.

    Raises:
        FileNotFoundError: if `source` does not exist.
        ValueError: if it has no row, or a line is invalid.
    """
    source = Path(source)
    if not source.exists():
        raise FileNotFoundError(
            f"annotations {source} do not exist; expected a text list, a csv, or a folder with one "
            "sub-folder per class (data.train and data.val of a config). `ffn prepare` writes lists"
        )
    return _read_class_folders(source) if source.is_dir() else read_list(source, labelled=labelled)


def _read_class_folders(folder: Path) -> list[AnnotationRow]:
    """The videos of a folder per class, by class and name.

    Hidden folders and folders that a tool wrote are left out.
    """
    classes = [entry for entry in visible(folder) if entry.is_dir() and not is_tool_folder(entry)]
    if not classes:
        raise ValueError(f"{folder} has no sub-folders of videos; expected one per class")
    return [row for entry in classes for row in _class_videos(entry)]


def _class_videos(folder: Path) -> list[AnnotationRow]:
    """The videos of one class: files, and folders of frames."""
    videos = videos_in(folder)
    for other in sorted({*visible(folder)} - {*videos}):
        if other.is_dir() and not is_frame_folder(other):
            raise ValueError(
                f"{other} is no folder of frames; expected CLASS/VIDEO in {folder.parent}. Move it "
                f"away, or give the folder above the classes, e.g. data.train={folder.name}"
            )
    if not videos:
        raise ValueError(f"{folder} contains no video; expected video files or folders of frames")
    return [AnnotationRow(str(video), os.path.abspath(video), folder.name) for video in videos]


def _label_indices(
    rows: Sequence[AnnotationRow], classes: Sequence[str] | None
) -> tuple[list[Label], list[str]]:
    """Class index of each row, or indices of a row with several labels, and all class names."""
    each = [(row.where, label) for row in rows for label in row.labels]
    several = isinstance(rows[0].label, tuple)
    indices, names = _class_indices(each, classes)
    if not several:
        return indices, names
    found = iter(indices)
    labels = [tuple(sorted(islice(found, len(row.labels)))) for row in rows]
    for row, own in zip(rows, labels, strict=True):
        if len({*own}) < len(own):
            raise ValueError(f"{row.where}: {SEPARATOR.join(row.labels)} has a label twice")
    return labels, names


def _class_indices(
    labels: Sequence[tuple[str, str]], classes: Sequence[str] | None
) -> tuple[list[int], list[str]]:
    """Class index of each label, given with its place, and all class names."""
    labels = [(where, canonical(label)) for where, label in labels]
    names = None if classes is None else [canonical(str(name)) for name in classes]
    kinds = [_kind(label) for _, label in labels]
    if {*kinds} <= {"index"} and "index" not in map(_kind, names or ()):
        return _numbered(labels, names)
    if names is None:
        if {*kinds} != {"name"}:
            odd = next((i for i, kind in enumerate(kinds) if kind != kinds[0]), 0)
            where, label = labels[odd]
            raise ValueError(
                f"{where}: label {label!r}; expected class indices 0, 1, … in every line or class "
                f"names in every line. {NAMES_REMEDY}"
            )
        names = sorted({label for _, label in labels})
    index = {name: i for i, name in enumerate(names)}
    for where, label in labels:
        if label not in index:
            close = get_close_matches(label, names, n=1, cutoff=0.0)
            raise ValueError(
                f"{where}: label {short(label)} is not one of the {len(names)} classes (of the "
                f"weights, data.classes or data.train); the closest is {close[0]!r}. Give a list "
                "and classes of one data set"
            )
    return [index[label] for _, label in labels], names


def _numbered(
    labels: Sequence[tuple[str, str]], names: list[str] | None
) -> tuple[list[int], list[str]]:
    """Labels that are class indices, which without class names have no gaps."""
    count = CLASSES.value if names is None else len(names)
    numbers = _numbers_in(names or ())
    for where, label in labels:
        if len(label) > 9 or (place := int(label)) >= count:
            expected = f"class indices count from 0, expected 0 … {count - 1}"
            raise ValueError(f"{where}: label {short(label)}; {expected}. {NAMES_REMEDY}")
        if (numbered := numbers.get(place, place)) != place:
            raise ValueError(
                f"{where}: label {label} is {names[place]!r}, counted from 0, or "
                f"{names[numbered]!r} by its number. Use class names as labels, or labels from 0 "
                "and class names without numbers; `ffn prepare ucf101` reads the lists of UCF101"
            )
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


def _numbers_in(names: Sequence[str]) -> dict[int, int]:
    """Places of class names by their own numbers from 0 or 1, as "1 Archery", "2 Biking"."""
    for form in (r"\W*([0-9]{1,9})[\W_].*", r".*?([0-9]{1,9})\W*"):
        found = [re.fullmatch(form, name) for name in names]
        numbers = {int(match[1]): place for place, match in enumerate(found) if match}
        if {*numbers} in ({*range(len(names))}, {*range(1, len(names) + 1)}):
            return numbers
    return {}


def _kind(label: str) -> str:
    """`index`, `number` for other numbers, as 1.0, or `name`."""
    if label.isascii() and label.isdigit():
        return "index"
    is_number = re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", label)
    return "number" if is_number else "name"


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
    if frames == 0 or (start is not None and end is not None and start >= end):
        raise ValueError(
            f"{row.where}: {row.frames} frames, {row.start} … {row.end} s; expected at least 1 "
            "frame, and a start before the end"
        )
    return Record(os.path.join(base, row.path), label, frames, start, end)


def _number(row: AnnotationRow, name: str, kind: type) -> int | float | None:
    """The number in a cell; None if the cell is empty."""
    text = getattr(row, name)
    if not text:
        return None
    try:
        number = kind(text)
        if 0 <= number < 2**31:  # neither infinite nor NaN
            return number
    except ValueError:
        pass
    kinds = "an integer" if kind is int else "seconds"
    raise ValueError(f"{row.where}: {name} is {text[:40]!r}; expected a number, {kinds} from 0")
