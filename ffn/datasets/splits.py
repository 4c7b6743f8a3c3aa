"""Split videos into training and validation at random: reproducible, by class, by group.

The same files always get the same split, and adding files changes the split of few others.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ffn.datasets.disk import video_name
from ffn.datasets.listing import Entry, Listing, PreparationError


@dataclass(frozen=True, slots=True)
class SplitSettings:
    """How to split videos that have no official splits.

    Attributes:
        val_fraction: Fraction of each class for validation, between 0 and 1 (both exclusive).
        group_pattern: Regular expression that is searched in the name of a video without suffix;
            its first group, or the whole match, names the group of the video. A group is never
            split, not even across classes. None: each video is a group.
        seed: Seed of the split.
    """

    val_fraction: float = 0.2
    group_pattern: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.val_fraction < 1:
            raise PreparationError(
                f"the validation fraction is {self.val_fraction}; expected 0 < fraction < 1"
            )
        try:
            re.compile(self.group_pattern or "")
        except re.error as error:
            raise PreparationError(
                f"group pattern {self.group_pattern!r} is not a regular expression: {error}"
            ) from None


def find_groups(listing: Listing, pattern: str) -> None:
    """Set the group of each entry by a pattern in its name.

    Raises:
        PreparationError: if the pattern does not match a name, or without its first group.
    """
    for entry in listing.entries:
        entry.group = _group(entry, pattern)


def split_entries(listing: Listing, entries: Sequence[Entry], settings: SplitSettings) -> None:
    """Give entries the split train or val: whole groups, each class near its fraction."""
    listing.splits = ["train", "val"]
    groups = defaultdict(list)
    for entry in entries:
        groups[entry.group or entry.name].append(entry)
    counts = Counter(entry.label for entry in entries)
    wanted = {name: max(1, round(n * settings.val_fraction)) for name, n in counts.items()}
    taken: Counter[str] = Counter()
    for group in sorted(groups, key=lambda name: _hash(f"{settings.seed}/{name}")):
        inside = Counter(entry.label for entry in groups[group])
        without = sum(abs(wanted[name] - taken[name]) for name in inside)
        with_it = sum(abs(wanted[name] - taken[name] - n) for name, n in inside.items())
        empties = any(taken[name] + n >= counts[name] for name, n in inside.items())
        validation = with_it < without and not empties
        for entry in groups[group]:
            entry.split = "val" if validation else "train"
        if validation:
            taken += inside
    _fill_empty_classes(groups, counts, taken)
    note = f"split at random: {settings.val_fraction:g} of each class for validation, "
    note += f"seed {settings.seed}"
    if settings.group_pattern is not None:
        note += f", {len(groups)} groups by {settings.group_pattern} kept together"
    listing.notes.append(note)


def _fill_empty_classes(
    groups: Mapping[str, list[Entry]], counts: Mapping[str, int], taken: Counter[str]
) -> None:
    """Move the smallest group of a class without validation videos to validation."""
    by_class = defaultdict(list)  # smallest groups first
    for group in sorted(groups, key=lambda name: (len(groups[name]), name)):
        for name in {entry.label for entry in groups[group]}:
            by_class[name].append(group)
    for name in sorted(counts):
        for group in by_class[name]:
            if taken[name]:
                break
            inside = Counter(entry.label for entry in groups[group])
            if all(taken[one] + n < counts[one] for one, n in inside.items()):
                taken += inside
                for entry in groups[group]:
                    entry.split = "val"


def _group(entry: Entry, pattern: str) -> str:
    found = re.search(pattern, video_name(entry.path or entry.name))
    if found is None:
        raise PreparationError(
            f"group pattern {pattern!r} does not match {entry.path}; it must match every name"
        )
    group = found[1] if found.re.groups else found[0]
    if group is None:
        raise PreparationError(
            f"group pattern {pattern!r} matches {entry.path} without its first group; the group "
            "must be part of every match, so make it not optional"
        )
    return group


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
