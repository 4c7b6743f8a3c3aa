"""The content of the lists of a data set: classes, splits, entries, and problems.

A reader per data set turns official files into a `Listing`; `check` compares it with the disk. An
entry that cannot be read in exactly one way becomes a `Problem` and is left out of the index.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from ffn.data.lists import is_label
from ffn.datasets.disk import Inventory
from ffn.registry import Registry

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # a list may have tabs in its cells
_SLACK = 1.5  # seconds that cutting at key frames may add to a part


class PreparationError(ValueError):
    """A data set that cannot be prepared; the message says what to change."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """A problem of a data set.

    Attributes:
        kind: `missing`, `unreadable`, `duplicate`, `label`, `overlap`, `ambiguous`, `class`,
            `unlisted`, `times`, `name` or `conversion`.
        split: The split, or "" for all.
        name: Name of the video in its list, its path on disk, or the class.
        detail: Cause and position.
    """

    kind: str
    split: str
    name: str
    detail: str


@dataclass(slots=True)
class Entry:
    """One labelled video of a list.

    Attributes:
        split: Name of the split: `train`, or `split1/train` if the data set has several folds; ""
            in a listing without splits.
        name: Name of the video in the data set, independent of its path.
        label: Class name.
        where: Position in the lists (`file:line`), for messages.
        path: Video file or frame folder relative to the root; None if there is none.
        times: Official start and end in seconds, if the file may be the whole source video.
        shared: Whether other entries name other parts of the same source video.
        start: Start of the part to use in seconds, or None.
        end: End of the part to use in seconds, or None.
        group: Name of what related videos share, such as a person or a scene, or None.
    """

    split: str
    name: str
    label: str
    where: str
    path: str | None = None
    times: tuple[float, float] | None = None
    shared: bool = False
    start: float | None = None
    end: float | None = None
    group: str | None = None

    def resolve_times(self, duration: float) -> str | None:
        """Decide whether a file with official times is the part or the whole source video.

        Sets `start` and `end` if it is the whole source video.

        Args:
            duration: Duration of the file in seconds.

        Returns:
            The contradiction if it can be neither, else None.

        Example: with times 10 to 20 s, a file of 10.2 s is the part, a file of 64 s is the source
        video, and a file of 15 s is neither.
        """
        start, end = self.times
        if duration <= end - start + _SLACK:
            if self.shared and duration < end - _SLACK:
                return (
                    f"lasts {duration:.1f} s: one of several listed parts, but its name has no "
                    "times"
                )
            return None
        if duration < end - _SLACK:
            return (
                f"lasts {duration:.1f} s: neither the part of {end - start:g} s nor a video that "
                f"reaches from {start:g} to {end:g} s"
            )
        self.start, self.end = start, end
        return None


@dataclass(slots=True)
class Listing:
    """The content of all lists of a data set.

    Attributes:
        classes: Class names in the official order of their indices, else sorted; none if the labels
            are texts, which the index has in the column `text`.
        splits: Names of the splits, in order; empty if `prepare` is to split the entries.
        entries: Labelled videos, in the order of the lists.
        known: Files that the lists name but the index leaves out, such as unlabelled test videos.
        problems: Problems found so far.
        notes: Remarks for the summary.
        fold_classes: Classes of each fold, as `split1` of `split1/train`, if they differ.
    """

    classes: list[str]
    splits: list[str]
    entries: list[Entry] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fold_classes: dict[str, list[str]] = field(default_factory=dict)

    def classes_of(self, split: str) -> list[str]:
        """Classes of a split; none if it has texts."""
        return self.fold_classes.get(split.rpartition("/")[0], self.classes)

    def add_problem(self, kind: str, split: str, name: str, detail: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(kind, split, name, detail))

    def choose(self, entry: Entry, paths: Sequence[str]) -> None:
        """Set the path of an entry to the only one of `paths`; several are a problem."""
        if len(paths) > 1:
            shown = ", ".join(paths[:4])
            cause = f"{entry.where}: may be any of {shown}; name one folder with --root"
            self.add_problem("ambiguous", entry.split, entry.name, cause)
            self.known |= set(paths)
        elif paths:
            entry.path = paths[0]

    def add_list(self, split: str, entries: Sequence[Entry], path: Path) -> None:
        """Add a split with the entries of its list; without any label, only a note.

        Args:
            split: Name of the split.
            entries: Entries of the list; the label "" stands for none.
            path: The list.
        """
        unlabelled = [entry for entry in entries if not entry.label]
        if entries and len(unlabelled) == len(entries):
            count = f"its {len(entries)} videos are left out of the index"
            self.notes.append(f"{path.name} holds no labels: {count}")
        else:
            self.splits.append(split)
            for entry in unlabelled:
                cause = f"{entry.where}: has no label, unlike other rows"
                self.add_problem("label", split, entry.name, cause)
        self.entries += [entry for entry in entries if entry.label]
        self.known |= {entry.path for entry in unlabelled if entry.path is not None}


Reader = Callable[[Inventory, Inventory], Listing]

DATASETS: Registry[Reader] = Registry("data set")


def register_dataset(name: str) -> Callable[[Reader], Reader]:
    """Decorator that adds a data set to `prepare` and `ffn prepare`.

    The function gets the files under `--root` and the files under `--annotations` (default: the
    same), and returns a `Listing`: classes, splits, and an `Entry` for each listed video. It runs
    once, in the main process, and opens no video; `prepare` reads the videos in worker processes.
    `videos.by_name` finds videos by name in any folder. A listing without splits is split at random
    (`SplitSettings`).

    Example:
        >>> @register_dataset("mine")
        ... def mine(videos: Inventory, lists: Inventory) -> Listing:
        ...     listing = Listing(classes=["jump", "run"], splits=["train", "val"])
        ...     for split in listing.splits:
        ...         for where, (path, label) in read_rows(lists.root / f"{split}.csv", ","):
        ...             listing.entries.append(Entry(split, path, label, where, path))
        ...     return listing
    """
    return DATASETS.register(name)


def check(listing: Listing, disk: Inventory) -> list[Entry]:
    """Compare a listing with the disk and add problems to it.

    Returns:
        The usable entries: each has a path and occurs once per split.

    Raises:
        PreparationError: if a class name cannot be written to a csv, or the split of an entry is
            not among the splits.
    """
    _check_names(listing)
    usable = _unambiguous(listing)
    on_disk = {*disk.videos, *disk.folders}
    for entry in usable:
        path = entry.path
        if path is None or (path not in on_disk and not (disk.root / path).exists()):
            cause = f"{entry.where}: no such video on disk"
            listing.add_problem("missing", entry.split, entry.name, cause)
            entry.path = None
        elif not _fits_csv(path):
            cause = (
                "the name starts or ends with a blank, contains a control character or is not "
                "UTF-8; rename the file"
            )
            listing.add_problem("name", entry.split, repr(path)[1:-1], cause)
            listing.known.add(path)
            entry.path = None
    usable = [entry for entry in usable if entry.path is not None]
    _find_overlaps(listing, usable)
    _find_unlisted(listing, disk)
    return usable


def find_empty_classes(listing: Listing, entries: Iterable[Entry]) -> None:
    """Add a problem for every class without a usable video in a split."""
    found = Counter((entry.split, entry.label) for entry in entries)
    for split in listing.splits:
        fold = split.rpartition("/")[0]
        others = [one for one in listing.splits if one.rpartition("/")[0] == fold]
        for name in listing.classes_of(split):
            if found[split, name]:
                continue
            count = sum(found[one, name] for one in others)
            where = ", ".join(one for one in others if found[one, name])
            cause = "1 video only," if count == 1 else f"all {count} videos of this class are"
            cause = f"{cause} in {where}" if count else "no usable video of this class"
            listing.add_problem("class", split, name, cause)


def _check_names(listing: Listing) -> None:
    for name in listing.classes:
        if not is_label(name) or not _fits_csv(name) or len(name.splitlines()) != 1:
            raise PreparationError(
                f"class {name!r} cannot be written to a list: its name starts or ends with a "
                "blank, contains a control character, is not UTF-8, or would be taken for a video "
                "or for several labels; rename it"
            )
    splits = set(listing.splits) or {""}
    odd = [entry for entry in listing.entries if entry.split not in splits]
    if odd:
        raise PreparationError(
            f"{odd[0].where}: {odd[0].name} has the split {odd[0].split!r}; expected one of "
            f"{listing.splits}"
        )


def _unambiguous(listing: Listing) -> list[Entry]:
    """Entries with a known label, each name once per split; contradictory ones are left out."""
    classes = {split: {*listing.classes_of(split)} for split in listing.splits or [""]}
    first: dict[tuple[str, str], Entry] = {}
    contradictory = set()
    for entry in listing.entries:
        key = (entry.split, entry.name)
        known = classes[entry.split]
        if known and entry.label not in known:
            cause = f"{entry.where}: label {entry.label!r} is not among the {len(known)} classes"
            listing.add_problem("label", *key, cause)
        elif key not in first:
            first[key] = entry
        elif first[key].label == entry.label:
            cause = f"{entry.where}: also listed at {first[key].where}"
            listing.add_problem("duplicate", *key, cause)
        else:
            contradictory.add(key)
            cause = (
                f"{entry.where}: {entry.label!r}, but {first[key].label!r} at {first[key].where}"
            )
            listing.add_problem("label", *key, cause)
    return [entry for key, entry in first.items() if key not in contradictory]


def _find_overlaps(listing: Listing, entries: Iterable[Entry]) -> None:
    """Add a problem for every video in two splits of one fold."""
    seen: dict[tuple[object, ...], Entry] = {}
    for entry in entries:
        fold = entry.split.rpartition("/")[0]
        part = (fold, entry.path, entry.times, entry.start, entry.end)
        other = seen.setdefault(part, entry)
        if other is not entry:
            cause = f"{entry.where}: is in {other.split} too ({other.where}); kept in both"
            if other.split == entry.split:
                cause = f"{entry.where}: is the same file as {other.name} ({other.where})"
            listing.add_problem("overlap", entry.split, entry.name, cause)


def _find_unlisted(listing: Listing, disk: Inventory) -> None:
    """Add a problem for every file that no list names.

    A frame folder with the name of a video holds its frames and is not reported.
    """
    named = {entry.path for entry in listing.entries} | listing.known
    for path in chain(*disk.by_name.values()):
        if path not in named:
            listing.add_problem("unlisted", "", path, "is on disk, but in no list")


def _fits_csv(text: str) -> bool:
    """Whether a csv returns a path or name as it was written."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return text == text.strip() != "" and not _CONTROL.search(text)
