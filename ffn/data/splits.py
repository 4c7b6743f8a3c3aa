"""Read, check and describe the training and validation lists of a data set."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ffn.data.annotations import read_annotation_rows, read_classes, rows_to_records
from ffn.data.lists import TEXT, AnnotationRow, read_list
from ffn.data.records import Record, label_text
from ffn.label_kinds import LABEL_KINDS, find_labels
from ffn.labels import LabelKind, MultiLabel, SingleLabel

UNLABELLED = "unlabelled"  # the one class of videos whose labels are not read


@dataclass(frozen=True)
class Splits:
    """The videos of a data set with their labels.

    Attributes:
        train: training records; empty if they were not requested.
        val: validation records.
        classes: class names in the order of their indices.
        rows: the rows of the training and of the validation list, as they are written.
        sources: the training and the validation annotations.
        labels: the kind of labels, for these classes.
    """

    train: list[Record]
    val: list[Record]
    classes: list[str]
    rows: tuple[list[AnnotationRow], list[AnnotationRow]] = field(default=([], []), repr=False)
    sources: tuple[Path, Path] = (Path(), Path())
    labels: LabelKind = SingleLabel

    @property
    def multi_label(self) -> bool:
        """Whether the lists have several labels per video."""
        return self.labels is MultiLabel

    def fingerprint(self) -> dict[str, Any]:
        """Counts, and a hash of file names and labels, stored in checkpoints."""
        lines = [f"{Path(r.path).name} {label_text(r.label)}" for r in [*self.train, *self.val]]
        text = "\n".join([*self.classes, *lines]).encode("utf-8", "surrogateescape")
        return {
            "train_videos": len(self.train),
            "val_videos": len(self.val),
            "classes": len(self.classes),
            "sha256": hashlib.sha256(text).hexdigest(),
        }


def read_splits(
    root: str | Path,
    *,
    train: str,
    val: str,
    class_file: str | None = None,
    classes: Sequence[str] | None = None,
    with_train: bool = True,
    multi_label: bool = False,
    labelled: bool = True,
    labels: str = "single",
) -> Splits:
    """Read the annotations of a data set.

    Args:
        root: folder of the annotations and of the paths in them.
        train: training annotations under ``root``: a list, a csv, or a folder per class.
        val: validation annotations under ``root``, in the same formats.
        class_file: file under ``root`` with one class name per line; by default the class names
            come from the training annotations.
        classes: class names, e.g. those of a checkpoint; they replace both.
        with_train: whether to return the training records.
        multi_label: the lists have the column ``labels``, with any number of labels per video.
        labelled: False reads lists with or without labels; every video has the class `UNLABELLED`.
        labels: another kind of labels, one of ``ffn.label_kinds.LABEL_KINDS``.

    Raises:
        ValueError: an annotation file is invalid, or the lists have the other kind of labels.
        FileNotFoundError: an annotation file or the file of class names is missing.
    """
    root, kind = Path(root), "multi" if multi_label else labels
    find_labels(kind)  # raises, if there is none
    names = list(classes) if classes is not None else None
    if not labelled:
        names, kind = [UNLABELLED], "single"
    if names is None and class_file is not None:
        names = read_classes(root / class_file)
    records: list[Record] = []
    rows: list[AnnotationRow] = []
    if with_train or names is None:
        rows, records, names = _read(root, train, names, kind, labelled)
    val_rows, val_records, names = _read(root, val, names, kind, labelled)
    if not with_train:
        rows, records = [], []
    sources = (root / train, root / val)
    found = find_labels(kind, names)
    return Splits(records, val_records, names, (rows, val_rows), sources, found)


def _read(
    root: Path, name: str, classes: list[str] | None, kind: str, labelled: bool
) -> tuple[list[AnnotationRow], list[Record], list[str]]:
    """Rows, records and class names of one list or folder, which has the given kind of labels."""
    has_classes = not hasattr(LABEL_KINDS[kind], "read")
    if labelled:
        rows = read_annotation_rows(root / name, labelled=has_classes)
    else:
        rows = _unlabelled_rows(root / name)
    found = "multi" if isinstance(rows[0].label, tuple) else "single"
    if TEXT in rows[0].others and not rows[0].label:
        found = "characters"
    if found != kind and has_classes:
        has = {"multi": "any number of labels", "single": "one label", "characters": "a text"}
        raise ValueError(
            f"{root / name} has {has[found]} per video. Set data.labels={found}, or give another "
            "list, whose column is label for one, labels for several and text for a text"
        )
    return rows, *rows_to_records(rows, root, classes, kind)


def _unlabelled_rows(source: Path) -> list[AnnotationRow]:
    """The rows of annotations with or without labels, which all get the label `UNLABELLED`."""
    try:
        rows = read_annotation_rows(source)
    except ValueError:
        if source.is_dir():
            raise
        rows = read_list(source, labelled=False)
    return [replace(row, label=UNLABELLED) for row in rows]


def check_splits(splits: Splits) -> None:
    """Raise ValueError for lists that cannot be trained on, or whose validation means nothing.

    There is a single class, no validation video has a label, or the validation videos are training
    videos. With several labels per video, a single class can be trained: present or absent.
    """
    train, val = splits.sources
    for source, records in ((train, splits.train), (val, splits.val)):
        if records and not any(record.labels for record in records):
            raise ValueError(
                f"no video of {source} has a label; write labels separated by | in its column "
                "labels, or give another list"
            )
    if splits.labels is SingleLabel and len(splits.classes) < 2 and splits.classes != [UNLABELLED]:
        raise ValueError(
            f"{train} has the single class {splits.classes[0]!r}; training needs two or more. "
            "Check the labels of the list (data.train), or its classes (data.classes)"
        )
    known = {*_clips(splits.train)}
    if splits.val and known.issuperset(_clips(splits.val)):
        raise ValueError(
            f"all {len(splits.val)} validation videos of {val} are training videos of {train}; "
            "validation needs other videos. Give another list as data.val"
        )


def describe_splits(splits: Splits) -> list[str]:
    """Lines about the videos of a training run: numbers per class, or the tokens of texts."""
    if hasattr(splits.labels, "read"):
        longest = max(len(record.labels) for record in (*splits.train, *splits.val))
        tokens = f"tokens: {' '.join(splits.classes)}; the longest text has {longest}"
        return [tokens] if hasattr(splits.labels, "text") else []
    lists = {"training": splits.train, "validation": splits.val}
    return [
        f"{name} videos per class: {_per_class(records, splits.classes)}"
        for name, records in lists.items()
    ]


def split_warnings(splits: Splits) -> Iterator[str]:
    """Videos or groups in both lists, repeated videos, and classes without videos."""
    files = {path for path, *_ in _clips(splits.train)}
    shared = [path for path, *_ in _clips(splits.val) if path in files]
    groups = {row.others.get("group") for row in splits.rows[0]} - {None, ""}
    mixed = [row.others["group"] for row in splits.rows[1] if row.others.get("group") in groups]
    for names, what in ((shared, "are files"), (mixed, "have a group")):
        if names:
            yield (
                f"{len(names)} of {len(splits.val)} validation videos {what} of the training list "
                f"({_examples(names)}); the accuracy is too high. Keep each in one list"
            )
    for name, records in (("training", splits.train), ("validation", splits.val)):
        counts = Counter(_clips(records))
        repeated = [path for (path, *_), times in counts.items() if times > 1]
        if repeated:
            yield f"{len(repeated)} {name} videos are listed again ({_examples(repeated)})"
        if hasattr(splits.labels, "read"):
            continue
        present = {label for record in records for label in record.labels}
        empty = [label for i, label in enumerate(splits.classes) if i not in present]
        if empty:
            number = f"{len(empty)} of {len(splits.classes)}"
            yield f"{number} classes have no {name} video ({_examples(empty)})"


def _clips(records: Sequence[Record]) -> list[tuple[str, float | None, float | None]]:
    """File and time range of each record."""
    return [(os.path.abspath(record.path), record.start, record.end) for record in records]


def _per_class(records: Sequence[Record], classes: Sequence[str]) -> str:
    counts = Counter(label for record in records for label in record.labels)
    found = sorted((counts[label], label) for label in counts)
    (least, few), (most, many) = found[0], found[-1]
    median = np.median([number for number, _ in found])
    return f"least {least} ({classes[few]}), median {median:g}, most {most} ({classes[many]})"


def _examples(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    return ", ".join([*names[:3], *(["…"] if len(names) > 3 else [])])
