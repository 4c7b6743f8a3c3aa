"""Videos of one's own: a folder per class, with folders of splits above them or without.

Without them the videos are divided here: the same files always fall into the same parts, adding
files moves few others, and clips of one group stay together.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from ffn.datasets.disk import Inventory, bare
from ffn.datasets.listing import Entry, Listing, PreparationError

_SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validate", "validation"),
    "test": ("test", "testing"),
}


@dataclass(frozen=True, slots=True)
class Division:
    """How videos without official splits are divided.

    Attributes:
        val_fraction: Share of each class that is held out, 0 to 1, ends excluded.
        group_pattern: Regular expression searched in a video's name without suffix; its first
            group (or all of it) names what must not be separated, across classes. None: each video
            stands alone.
        seed: Another number gives another division.
    """

    val_fraction: float = 0.2
    group_pattern: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.val_fraction < 1:
            raise PreparationError(
                f"the fraction for validation is {self.val_fraction}; expected 0 < fraction < 1"
            )
        try:
            re.compile(self.group_pattern or "")
        except re.error as error:
            raise PreparationError(
                f"group pattern {self.group_pattern!r} is no regular expression: {error}"
            ) from None


def read_folder(disk: Inventory, division: Division | None) -> Listing:
    """Read `SPLIT/CLASS/video`, or `CLASS/video` and divide it; a video may be a frame folder.

    Raises:
        PreparationError: if there is no such video, or a division is asked for that exists.
    """
    paths = [*disk.videos, *disk.folders]
    tops = {PurePosixPath(path).parts[0] for path in paths if "/" in path}
    aliases = {name: split for split, names in _SPLITS.items() for name in names}
    splits = {top: aliases[top.lower()] for top in tops if top.lower() in aliases}
    doubled = [split for split, n in Counter(splits.values()).items() if n > 1]
    if doubled:
        raise PreparationError(
            f"{disk.root} holds more than one folder for {doubled[0]}: "
            f"{', '.join(sorted(top for top in splits if splits[top] == doubled[0]))}"
        )
    if splits and division is not None:
        raise PreparationError(
            f"{disk.root} has folders of splits ({', '.join(sorted(splits))}), so it is not "
            "divided: leave out the fraction, the group pattern and the seed"
        )
    listing = Listing([], [split for split in _SPLITS if split in splits.values()])
    depth = 3 if splits else 2
    for path in paths:
        parts = PurePosixPath(path).parts
        if len(parts) != depth or (splits and parts[0] not in splits):
            continue  # the check lists it as a file that nothing names
        split = splits[parts[0]] if splits else ""
        listing.entries.append(Entry(split, path, parts[-2], path, path))
    if not listing.entries:
        raise PreparationError(
            f"{disk.root} holds no video as CLASS/video or SPLIT/CLASS/video, with SPLIT train, "
            "val or test; a video is a file or a folder of frames"
        )
    listing.classes = sorted({entry.label for entry in listing.entries})
    if not splits:
        listing.splits = ["train", "val"]
        _divide(listing, division or Division())
    elif "val" not in listing.splits:
        listing.notes.append(
            f"there is no folder for validation, so no val.csv; splits: {', '.join(listing.splits)}"
        )
    return listing


def _divide(listing: Listing, division: Division) -> None:
    """Give each entry its split, whole groups at a time, each class near its share."""
    groups = defaultdict(list)
    for entry in listing.entries:
        groups[_group(entry, division.group_pattern)].append(entry)
    counts = Counter(entry.label for entry in listing.entries)
    wanted = {name: max(1, round(n * division.val_fraction)) for name, n in counts.items()}
    taken: Counter[str] = Counter()
    for group in sorted(groups, key=lambda name: _hash(f"{division.seed}/{name}")):
        inside = Counter(entry.label for entry in groups[group])
        without = sum(abs(wanted[name] - taken[name]) for name in inside)
        with_it = sum(abs(wanted[name] - taken[name] - n) for name, n in inside.items())
        empties = any(taken[name] + n >= counts[name] for name, n in inside.items())
        held_out = with_it < without and not empties
        for entry in groups[group]:
            entry.split = "val" if held_out else "train"
        if held_out:
            taken += inside
    _hold_out_one(groups, counts, taken)
    shown = f"{division.val_fraction:g} of each class held out, seed {division.seed}"
    if division.group_pattern is not None:
        shown += f", {len(groups)} groups by {division.group_pattern} kept together"
    listing.notes.append(f"divided here: {shown}")


def _hold_out_one(
    groups: Mapping[str, list[Entry]], counts: Mapping[str, int], taken: Counter[str]
) -> None:
    """Where all groups of a class are larger than its share, hold out the smallest of them."""
    for name in sorted(counts):
        for group in sorted(groups, key=lambda name: (len(groups[name]), name)):
            inside = Counter(entry.label for entry in groups[group])
            spares = all(taken[one] + n < counts[one] for one, n in inside.items())
            if not taken[name] and inside[name] and spares:
                taken += inside
                for entry in groups[group]:
                    entry.split = "val"


def _group(entry: Entry, pattern: str | None) -> str:
    if pattern is None:
        return entry.name
    found = re.search(pattern, bare(entry.path))
    if found is None:
        raise PreparationError(
            f"group pattern {pattern!r} is not found in {entry.path}; give one that fits every name"
        )
    return found[1] if found.re.groups else found[0]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
