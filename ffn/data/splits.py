"""Read the training and validation lists of a data set, and fingerprint them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ffn.data.annotations import (
    check_several_classes,
    read_annotation_rows,
    read_classes,
    rows_to_records,
)
from ffn.data.lists import AnnotationRow
from ffn.data.records import Record, has_several_labels, label_text
from ffn.labels import SEPARATOR


@dataclass(frozen=True)
class Splits:
    """The labelled videos of a data set.

    Attributes:
        train: training records; empty if they were not requested.
        val: validation records.
        classes: class names in the order of their indices.
        prepared: fingerprint in the ``dataset.json`` next to the lists, which
            ``ffn prepare`` writes: counts per class, lengths, names. None without one.
        rows: the rows of the training and of the validation list, as they are written.
        sources: the training and the validation annotations.
    """

    train: list[Record]
    val: list[Record]
    classes: list[str]
    prepared: Any = None
    rows: tuple[list[AnnotationRow], list[AnnotationRow]] = field(default=([], []), repr=False)
    sources: tuple[Path, Path] = (Path(), Path())

    @property
    def multi_label(self) -> bool:
        """Whether the lists have several labels per video."""
        return has_several_labels(self.val or self.train)

    def fingerprint(self) -> dict[str, Any]:
        """Counts, and a hash of file names and labels, stored in checkpoints."""
        lines = [f"{Path(r.path).name} {label_text(r.label)}" for r in [*self.train, *self.val]]
        text = "\n".join([*self.classes, *lines]).encode("utf-8", "surrogateescape")
        found = {
            "train_videos": len(self.train),
            "val_videos": len(self.val),
            "classes": len(self.classes),
            "sha256": hashlib.sha256(text).hexdigest(),
        }
        return found if self.prepared is None else {**found, "prepared": self.prepared}


def read_splits(
    root: str | Path,
    *,
    train: str,
    val: str,
    class_file: str | None = None,
    classes: Sequence[str] | None = None,
    with_train: bool = True,
    multi_label: bool = False,
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

    Raises:
        ValueError: an annotation file or ``dataset.json`` is invalid, or the lists have the other
            kind of labels.
        FileNotFoundError: an annotation file or the file of class names is missing.
    """
    root = Path(root)

    names = list(classes) if classes is not None else None
    if names is None and class_file is not None:
        if not (root / class_file).is_file():
            raise FileNotFoundError(
                f"no file of class names {root / class_file}; check data.root ({root}) and "
                f"data.classes ({class_file})"
            )
        names = read_classes(root / class_file)
    records: list[Record] = []
    rows: list[AnnotationRow] = []
    if with_train or names is None:
        rows, records, names = _read(root, train, names, multi_label)
    val_rows, val_records, names = _read(root, val, names, multi_label)
    if not with_train:
        rows, records = [], []
    sources = (root / train, root / val)
    return Splits(records, val_records, names, _prepared(sources[0]), (rows, val_rows), sources)


def _read(
    root: Path, name: str, classes: list[str] | None, multi_label: bool
) -> tuple[list[AnnotationRow], list[Record], list[str]]:
    """Rows, records and class names of one list or folder."""
    source = root / name
    rows = read_annotation_rows(source)
    _check_kind(source, rows, multi_label)
    if source.is_dir() and classes is None:
        check_several_classes(source, rows)
    return rows, *rows_to_records(rows, root, classes)


def _check_kind(source: Path, rows: Sequence[AnnotationRow], multi_label: bool) -> None:
    """Raise ValueError for annotations of the other kind of labels."""
    found = isinstance(rows[0].label, tuple)
    if found and not multi_label:
        raise ValueError(
            f"{source} has the column labels, several labels per video; data.labels=single needs "
            "one. Set data.labels=multi, or write one label per video in a column label"
        )
    if multi_label and not found:
        raise ValueError(
            f"{source} has one label per video; data.labels=multi reads a csv with the header "
            f"path,labels and lines as clip.mp4,push{SEPARATOR}pull. Write such a csv (of a csv, "
            "rename the column of the label to labels), or set data.labels=single"
        )


def _prepared(annotations: Path) -> Any:
    """Fingerprint of a prepared data set, found through one of its lists; None without one."""
    for folder in annotations.parents[:2]:  # index/train.csv or index/split1/train.csv
        description = folder / "dataset.json"
        if description.is_file():
            try:
                return json.loads(description.read_text(encoding="utf-8")).get("fingerprint")
            except (ValueError, AttributeError) as error:
                raise ValueError(
                    f"{description} does not describe a data set ({error}); prepare the data set "
                    "again, or move the file away"
                ) from error
    return None
