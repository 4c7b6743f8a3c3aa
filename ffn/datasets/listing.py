"""What the lists of a data set say: entries, class names, and what is wrong with them.

A reader per data set (`something`, `kinetics`, `actions`, `folders`) turns official files into a
`Listing`; `check` compares it with the disk. Nothing is guessed: whatever cannot be read in exactly
one way becomes a `Problem` and stays out of the index.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ffn.datasets.disk import Inventory, bare


class PreparationError(ValueError):
    """A data set that cannot be prepared at all; the message says what to change."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        kind: `missing`, `unreadable`, `duplicate`, `label`, `overlap`, `ambiguous`, `class`,
            `unlisted`, `times`, `name` or `conversion`.
        split: Split concerned, or "" for all.
        name: Video as its list calls it, path on disk, or class.
        detail: The cause, and where it stands.
    """

    kind: str
    split: str
    name: str
    detail: str


@dataclass(slots=True)
class Entry:
    """One labelled video of a list.

    Attributes:
        split: Split, as `train`, or `split1/train` where a data set has several divisions.
        name: Name that identifies the video in the data set, wherever its file lies.
        label: Class name.
        where: File and line, for messages.
        path: Video file or frame folder relative to the root, or None if the disk has none.
        times: Official (start, end) in seconds, if the file may be the whole source video.
        shared: Whether other entries name other parts of the same source video.
        start: Start of the part to use in seconds, or None; `end` likewise.
        end: End of the part to use in seconds, or None.
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


@dataclass(slots=True)
class Listing:
    """All that the lists of a data set say.

    Attributes:
        classes: Class names in the official order of their indices, else sorted.
        splits: Names of the splits, in order.
        entries: Labelled videos, in the order of the lists.
        known: Files that the lists name without asking for them, as unlabelled test videos.
        problems: What is wrong.
        notes: What a reader of the summary should know, but is not wrong.
    """

    classes: list[str]
    splits: list[str]
    entries: list[Entry] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, kind: str, split: str, name: str, detail: str) -> None:
        """Note a problem."""
        self.problems.append(Problem(kind, split, name, detail))

    def of(self, split: str) -> list[Entry]:
        """Entries of one split."""
        return [entry for entry in self.entries if entry.split == split]


def check(listing: Listing, disk: Inventory) -> list[Entry]:
    """Compare a listing with the disk; adds to its problems.

    Returns:
        The entries that can be used, as far as names tell: each with a path, once per split.

    Raises:
        PreparationError: if a class has a name that no list can hold.
    """
    odd = [name for name in listing.classes if not _survives(name) or len(name.splitlines()) != 1]
    if odd:
        raise PreparationError(
            f"class {odd[0]!r} cannot stand in a list: its name starts or ends with a blank, "
            "breaks a line or is no UTF-8; rename it"
        )
    usable = _unambiguous(listing)
    for entry in usable:
        if entry.path is None:
            listing.add("missing", entry.split, entry.name, f"{entry.where}: no such video on disk")
        elif not _survives(entry.path):
            cause = "the name starts or ends with a blank or is no UTF-8; rename the file"
            listing.add("name", entry.split, repr(entry.path)[1:-1], cause)
            listing.known.add(entry.path)
            entry.path = None
    usable = [entry for entry in usable if entry.path is not None]
    _find_overlaps(listing, usable)
    _find_unlisted(listing, disk)
    return usable


def find_empty_classes(listing: Listing, entries: Iterable[Entry]) -> None:
    """Note every class that has no usable video in a split."""
    seen = defaultdict(set)
    for entry in entries:
        seen[entry.split].add(entry.label)
    for split in listing.splits:
        for name in listing.classes:
            if name not in seen[split]:
                listing.add("class", split, name, "no video of this class can be used")


def read_text(path: Path) -> str:
    """Text of a list.

    Raises:
        PreparationError: if it is no UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise PreparationError(f"{path} is no UTF-8 text ({error}); save it as UTF-8") from None


def lines(path: Path) -> Iterator[tuple[str, str]]:
    """Lines that hold something, stripped, each with its place as `file:line`."""
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if line.strip():
            yield f"{path.name}:{number}", line.strip()


def cells(path: Path, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    """Rows of a table, each with its place."""
    table = csv.reader(read_text(path).splitlines(), delimiter=delimiter)
    for row in table:
        if any(cell.strip() for cell in row):
            yield f"{path.name}:{table.line_num}", [cell.strip() for cell in row]


def _unambiguous(listing: Listing) -> list[Entry]:
    """Entries with a known label, each name once per split; contradictory ones not at all."""
    classes = set(listing.classes)
    first: dict[tuple[str, str], Entry] = {}
    contradictory = set()
    for entry in listing.entries:
        key = (entry.split, entry.name)
        if entry.label not in classes:
            cause = f"{entry.where}: label {entry.label!r} is not among the {len(classes)} classes"
            listing.add("label", *key, cause)
        elif key not in first:
            first[key] = entry
        elif first[key].label == entry.label:
            listing.add("duplicate", *key, f"{entry.where}: stands at {first[key].where} already")
        else:
            contradictory.add(key)
            cause = (
                f"{entry.where}: {entry.label!r}, but {first[key].label!r} at {first[key].where}"
            )
            listing.add("label", *key, cause)
    return [entry for key, entry in first.items() if key not in contradictory]


def _find_overlaps(listing: Listing, entries: Iterable[Entry]) -> None:
    """Videos in two splits of one division: what is tested was trained on."""
    seen: dict[tuple[str, str, object], Entry] = {}
    for entry in entries:
        division = entry.split.rpartition("/")[0]
        other = seen.setdefault((division, entry.path, entry.times), entry)
        if other is not entry:
            cause = f"{entry.where}: stands in {other.split} too ({other.where}); kept in both"
            if other.split == entry.split:
                cause = f"{entry.where}: is the same file as {other.name} ({other.where})"
            listing.add("overlap", entry.split, entry.name, cause)


def _find_unlisted(listing: Listing, disk: Inventory) -> None:
    """Files that no list names; frames with the name of a video were taken out of it."""
    named = {entry.path for entry in listing.entries} | listing.known
    videos = {bare(path) for path in disk.videos}
    folders = (path for path in disk.folders if bare(path) not in videos)
    for path in (*disk.videos, *folders):
        if path not in named:
            listing.add("unlisted", "", path, "is on disk, but no list names it")


def _survives(text: str) -> bool:
    """Whether a path or name is read from a csv as it was written."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return text == text.strip() != ""


def count_labels(entries: Iterable[Entry], classes: Iterable[str]) -> dict[str, int]:
    """Videos per class, in the order of the classes."""
    counted = Counter(entry.label for entry in entries)
    return {name: counted[name] for name in classes}
