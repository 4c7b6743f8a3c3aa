"""Describe and check the lists of a training run: counts and overlap."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ffn.data.lists import AnnotationRow
from ffn.data.records import Record, labels_of
from ffn.data.splits import Splits

Clip = tuple[str, float | None, float | None]  # path, start, end


def check_splits(splits: Splits) -> None:
    """Raise ValueError for lists that cannot be trained on, or whose validation means nothing.

    There is a single class, no validation video has a label, or the validation videos are training
    videos. With several labels per video, a single class can be trained: present or absent.
    """
    train, val = splits.sources
    for source, records in ((train, splits.train), (val, splits.val)):
        if records and not any(map(labels_of, records)):
            raise ValueError(
                f"no video of {source} has a label; write labels separated by | in its column "
                "labels, or give another list"
            )
    if len(splits.classes) < 2 and not splits.multi_label:
        raise ValueError(
            f"{train} has the single class {splits.classes[0]!r}; training needs two or more. "
            "Check the labels of the list (data.train), or its classes (data.classes)"
        )
    if train.exists() and val.exists() and os.path.samefile(train, val):
        raise ValueError(
            f"data.train and data.val are the same, {train}; validation needs other videos. Give "
            "another list as data.val"
        )
    known = {*_clips(splits.train)}
    if splits.val and all(clip in known for clip in _clips(splits.val)):
        raise ValueError(
            f"all {len(splits.val)} validation videos of {val} are training videos of {train}; "
            "validation needs other videos. Give another list as data.val"
        )


def describe_splits(splits: Splits) -> list[str]:
    """Lines about the videos of a training run: numbers per class, and of labels per video."""
    lists = {"training": splits.train, "validation": splits.val}
    lines = [
        f"{name} videos per class: {_per_class(records, splits.classes)}"
        for name, records in lists.items()
    ]
    if splits.multi_label:
        lines += [
            f"labels per {name} video: {_labels_per_video(records)}"
            for name, records in lists.items()
        ]
    return lines


def split_warnings(splits: Splits) -> Iterator[str]:
    """Videos or groups in both lists, repeated videos, and classes without videos."""
    train, val = _clips(splits.train), _clips(splits.val)
    files = {path for path, *_ in train}
    rows = [*zip(splits.rows[1], [path in files for path, *_ in val], strict=True)]
    shared = [row.path for row, is_shared in rows if is_shared]
    if shared:
        yield (
            f"{len(shared)} of {len(val)} validation videos are files of the training list too "
            f"({_examples(shared)}); the accuracy is too high. Remove them from one list"
        )
    groups = {row.group for row in splits.rows[0]} - {None}
    mixed = [row.group for row, is_shared in rows if row.group in groups and not is_shared]
    if mixed:
        yield (
            f"{len(mixed)} of {len(val)} validation videos have a group of the training list "
            f"({_examples(mixed)}); the accuracy is too high. Keep each group in one list"
        )
    yield from _list_warnings("training", splits.train, splits.rows[0], splits.classes)
    yield from _list_warnings("validation", splits.val, splits.rows[1], splits.classes)


def _list_warnings(
    name: str, records: Sequence[Record], rows: Sequence[AnnotationRow], classes: Sequence[str]
) -> Iterator[str]:
    clips = _clips(records)
    counts = Counter(clips)
    repeated = [row.path for clip, row in zip(clips, rows, strict=True) if counts[clip] > 1]
    if repeated:
        labels = {(clip, record.label) for clip, record in zip(clips, records, strict=True)}
        contradictions = len(labels) - len(counts)
        other = f", {contradictions} of them with another label" if contradictions else ""
        yield (
            f"{len(repeated) - sum(n > 1 for n in counts.values())} {name} videos are listed again"
            f"{other} ({_examples(repeated)}); remove the repeated lines"
        )
    present = {label for record in records for label in labels_of(record)}
    empty = [label for i, label in enumerate(classes) if i not in present]
    if empty:
        yield f"{len(empty)} of {len(classes)} classes have no {name} video ({_examples(empty)})"


def _clips(records: Sequence[Record]) -> list[Clip]:
    """File and time range of each record."""
    return [(os.path.abspath(record.path), record.start, record.end) for record in records]


def _per_class(records: Sequence[Record], classes: Sequence[str]) -> str:
    counts = Counter(label for record in records for label in labels_of(record))
    found = sorted((counts[label], label) for label in counts)
    (least, few), (most, many) = found[0], found[-1]
    if least == most:
        return f"{least} in each of {len(found)} classes"
    median = np.median([number for number, _ in found])
    return f"least {least} ({classes[few]}), median {median:g}, most {most} ({classes[many]})"


def _labels_per_video(records: Sequence[Record]) -> str:
    numbers = [len(labels_of(record)) for record in records]
    unlabelled = numbers.count(0)
    without = f"; {unlabelled} videos without a label" if unlabelled else ""
    return f"least {min(numbers)}, mean {np.mean(numbers):.1f}, most {max(numbers)}{without}"


def _examples(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    shown = ", ".join(names[:3])
    return f"{shown}, …" if len(names) > 3 else shown
