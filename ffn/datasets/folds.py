"""Folds for cross-validation: clips of one group stay together, classes are spread evenly.

A group holds the clips that resemble each other: those of one person, scene or source video. If
they were in training and test, the accuracy would be too high.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ffn.data import AnnotationRow, Record, read_annotation_rows, rows_to_records
from ffn.datasets.index import csv_text
from ffn.files import write_text


@dataclass(frozen=True)
class GroupedClips:
    """Labelled clips and their groups; entry i of each list belongs to clip i.

    The clips are sorted by path and time: the order of the annotations does not matter.

    Attributes:
        rows: Of the annotations.
        records: With class indices.
        groups: Names; the path of the clip without a group column.
        classes: Class names in the order of their indices.
    """

    rows: list[AnnotationRow]
    records: list[Record]
    groups: list[str]
    classes: list[str]

    @property
    def labels(self) -> list[int]:
        """Class index of each clip."""
        return [record.label for record in self.records]

    def fingerprint(self, fold_of: Sequence[int]) -> str:
        """SHA-256 of the classes and of path, times, label, group and fold of every clip."""
        columns = zip(self.rows, self.labels, self.groups, fold_of, strict=True)
        lines = [
            "\t".join(map(str, (row.path, row.start, row.end, self.classes[label], group, fold)))
            for row, label, group, fold in columns
        ]
        text = "\n".join([*self.classes, *lines]).encode("utf-8", "surrogateescape")
        return hashlib.sha256(text).hexdigest()


def read_grouped_clips(
    source: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str],
    group: str | None = None,
    where: Mapping[str, Sequence[str]] | None = None,
    classes: str | os.PathLike[str] | None = None,
) -> GroupedClips:
    """Read clips and their groups from a csv.

    Args:
        source: A csv with a header, see `ffn.data.read_annotations`.
        root: Folder that relative paths start from.
        group: Column with the name of each clip's group; None: each file is its own group.
        where: Column -> accepted cells; other rows are left out.
        classes: File with one class name per line; None: the names in the remaining rows.

    Raises:
        FileNotFoundError: if a file does not exist.
        ValueError: if a line is invalid, a column is missing, no row remains, a group is empty, a
            clip is listed twice, the clips of a file have different groups, or a clip may have
            several labels.
    """
    where = where or {}
    columns = [*where, *([] if group is None else [group])]
    rows = read_annotation_rows(source, columns)
    if isinstance(rows[0].label, tuple):
        raise ValueError(
            f"{source} has the column labels, several labels per video; cross-validation needs one "
            f"per clip, in a column label. Train and test such lists with ffn train and "
            f"ffn test"
        )
    for position, (column, accepted) in enumerate(where.items()):
        remaining = [row for row in rows if row.extra[position] in accepted]
        if not remaining:
            values = sorted({row.extra[position] for row in rows})
            more = f", … ({len(values)} values)" if len(values) > 8 else ""
            raise ValueError(
                f"{source} has no row with {column}={','.join(accepted)}; the values of {column} "
                f"in the remaining rows are {', '.join(values[:8])}{more}"
            )
        rows = remaining
    _check_groups(rows, group)
    rows = sorted(rows, key=lambda row: (row.path, row.start or "", row.end or ""))
    records, names = rows_to_records(rows, root, classes)
    groups = [row.path if group is None else row.extra[-1] for row in rows]
    return GroupedClips(rows, records, groups, names)


def assign_folds(
    labels: Sequence[int],
    groups: Sequence[str],
    folds: int,
    *,
    seed: int = 0,
    classes: Sequence[str] | None = None,
) -> list[int]:
    """Assign clips to folds: whole groups, each class spread as evenly as its groups allow.

    The groups are assigned one by one, the most uneven one first, each to the fold where it evens
    out the shares of the classes most (scikit-learn's ``StratifiedGroupKFold``). Groups that are
    alike come in an order drawn from the seed. The result depends on labels, groups, number of
    folds and seed, not on the order of the clips.

    Args:
        labels: Class index of each clip.
        groups: Group of each clip.
        folds: Number of folds, at least 2.
        seed: Seed of the order of the groups.
        classes: Class names, for messages; default: the indices.

    Returns:
        The fold of each clip, from 0.

    Raises:
        ValueError: if there are fewer groups than folds, fewer than two classes, no class with a
            clip per fold, or a class would be missing in a training part.
        ImportError: if scikit-learn is not installed.
    """
    groups_of = defaultdict(set)
    for label, group in zip(labels, groups, strict=True):
        groups_of[label].add(group)
    names = {label: str(label) if classes is None else classes[label] for label in groups_of}
    _check_sizes(folds, Counter(labels), set(groups), groups_of, names)

    order = sorted(set(groups), key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())
    number = {group: position for position, group in enumerate(order)}
    found = _stratified(labels, [number[group] for group in groups], folds)

    fold_of_group = dict(zip(groups, found, strict=True))
    for label, inside in sorted(groups_of.items()):
        if len({fold_of_group[group] for group in inside}) == 1:
            raise ValueError(
                f"all {len(inside)} groups of class {names[label]!r} fell into fold "
                f"{fold_of_group[min(inside)]}; when it is tested, no training clip has this "
                "class. Use more folds or another fold seed"
            )
    return found


def write_fold_lists(clips: GroupedClips, fold_of: Sequence[int], folder: Path) -> None:
    """Write ``fold_K/train.csv`` and ``fold_K/test.csv`` for every fold K."""
    columns = ["path", "label", "group"]
    columns += [c for c in ("frames", "start", "end") if any(getattr(r, c) for r in clips.rows)]
    cells = [
        [group if column == "group" else getattr(row, column) for column in columns]
        for row, group in zip(clips.rows, clips.groups, strict=True)
    ]
    for fold in sorted(set(fold_of)):
        target = folder / f"fold_{fold}"
        target.mkdir(parents=True, exist_ok=True)
        for name, inside in (("train", False), ("test", True)):
            chosen = [c for c, own in zip(cells, fold_of, strict=True) if (own == fold) is inside]
            write_text(target / f"{name}.csv", csv_text([columns, *chosen]))


def _check_groups(rows: Sequence[AnnotationRow], group: str | None) -> None:
    first: dict[tuple[str, str | None, str | None], AnnotationRow] = {}
    first_of_file: dict[str, AnnotationRow] = {}
    for row in rows:
        if group is not None and not row.extra[-1]:
            raise ValueError(f"{row.where}: the {group} is empty; give each clip a group")
        same = first.setdefault((row.path, row.start, row.end), row)
        if same is not row:
            raise ValueError(
                f"{row.where}: {row.path} is listed before, at {same.where}; list each clip once"
            )
        other = first_of_file.setdefault(row.path, row)
        if group is not None and other.extra[-1] != row.extra[-1]:
            raise ValueError(
                f"{row.where}: {row.path} has the {group} {row.extra[-1]!r}, and "
                f"{other.extra[-1]!r} at {other.where}; clips of one file need the same group"
            )


def _check_sizes(
    folds: int,
    counts: Mapping[int, int],
    groups: set[str],
    groups_of: Mapping[int, set[str]],
    names: Mapping[int, str],
) -> None:
    if folds < 2:
        raise ValueError(f"{folds} folds; expected at least 2")
    if len(groups) < folds:
        raise ValueError(
            f"there are {len(groups)} groups for {folds} folds; each fold needs at least one. "
            "Use fewer folds, or finer groups"
        )
    if len(groups_of) < 2:
        raise ValueError(f"all clips have the class {', '.join(names.values())}; expected several")
    if max(counts.values()) < folds:
        raise ValueError(
            f"every class has fewer clips than there are folds (at most {max(counts.values())} for "
            f"{folds}); use fewer folds"
        )
    single = [label for label, inside in sorted(groups_of.items()) if len(inside) == 1]
    if single:
        listed = ", ".join(f"{names[label]!r} ({min(groups_of[label])})" for label in single[:5])
        raise ValueError(
            f"{len(single)} of {len(groups_of)} classes have clips of one group only: {listed}. "
            "When it is tested, no training clip has this class. Each class needs two groups or "
            "more: add clips, use finer groups, or leave the class out"
        )


def _stratified(labels: Sequence[int], groups: Sequence[int], folds: int) -> list[int]:
    try:
        from sklearn.model_selection import StratifiedGroupKFold
    except ImportError as error:
        raise ImportError(
            "cross-validation needs scikit-learn: pip install 'frame-flexible[crossval]'"
        ) from error
    # Its own shuffle option unbalances the folds in versions before 1.8. Without the option, equal
    # groups keep the order of their numbers.
    splitter = StratifiedGroupKFold(folds)
    found = [-1] * len(labels)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        for fold, (_, inside) in enumerate(splitter.split(labels, labels, groups)):
            for clip in inside:
                found[clip] = fold
    return found
