"""Kinetics-400, -600, -700 and -700-2020: parts of videos, named by id and time.

The lists are csv with the columns label,youtube_id,time_start,time_end,split; test lists of some
releases have no labels. The files come from various downloaders: `ID_000010_000020.mp4` or
`ID.mp4`, in a folder per split, per class, or both; other containers; suffixes stacked. A file
`ID.mp4` may be the part or the whole source video: its duration tells, see `settle_times`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ffn.datasets.disk import Inventory, folders_of
from ffn.datasets.listing import Entry, Listing, PreparationError, cells
from ffn.datasets.lists import choose_lists

_SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "validate", "validation", "valid"),
    "test": ("test", "testing"),
}
_SLACK = 1.5  # seconds that a cut at key frames may add to a part


def read_kinetics(disk: Inventory, lists: Inventory, count: int) -> Listing:
    """Read Kinetics with `count` classes."""
    title = f"Kinetics-{count}"
    patterns = {
        split: f"(?:.*[-_])?(?:{'|'.join(names)})(?:[-_].*)?\\.csv"
        for split, names in _SPLITS.items()
    }
    found = {
        split: [path for path in lists.find_list(pattern) if _header(path) is not None]
        for split, pattern in patterns.items()
    }
    chosen = choose_lists(lists, found, patterns, (), title)
    if not {"train", "val"} & set(chosen):
        raise PreparationError(
            f"no official list of {title} under {lists.root}: expected train.csv and val.csv (or "
            "validate.csv) with the columns label,youtube_id,time_start,time_end,split. Name their "
            "folder with --annotations; a folder per class without lists is the data set `folder`"
        )

    listing = Listing([], [])
    rows = {split: list(_rows(path)) for split, path in chosen.items()}
    source = "train" if "train" in rows else "val"
    listing.classes = sorted({label for *_, label, _ in rows[source] if label})
    if len(listing.classes) != count:
        listing.notes.append(
            f"{chosen[source].name} names {len(listing.classes)} classes; {title} has {count}"
        )
    parts = {row[:3] for one in rows.values() for row in one}
    ids = Counter(video for video, *_ in parts)
    spelt = {plain(name): name for name in listing.classes}
    replaced = 0
    for split in [split for split in _SPLITS if split in rows]:
        unlabelled = all(label is None for *_, label, _ in rows[split])
        if unlabelled:
            listing.notes.append(
                f"{chosen[split].name} holds no labels: its {len(rows[split])} videos are left out"
            )
        else:
            listing.splits.append(split)
        for video, start, end, label, where in rows[split]:
            if label is None and not unlabelled:
                listing.add("label", split, video, f"{where}: has no label, unlike others")
            entry = Entry(split, f"{video}_{start:06d}_{end:06d}", label or "", where)
            entry.shared = ids[video] > 1
            replaced += _find(listing, disk, entry, video, start, end)
            _check_class(listing, entry, spelt)
            if label is not None:
                listing.entries.append(entry)
            elif entry.path is not None:
                listing.known.add(entry.path)
    if replaced:
        listing.notes.append(f"{replaced} videos are taken from a replacement folder")
    return listing


def settle_times(entry: Entry, duration: float) -> str | None:
    """Whether a file named by its id alone is the part or the whole video it comes from.

    Sets `start` and `end` of the entry if it is the whole video.

    Args:
        entry: An entry with official times.
        duration: Of the file, in seconds.

    Returns:
        What is wrong if it can be neither, else None.

    Example: a part from 10 to 20 s is cut if the file lasts 10.2 s, whole if it lasts 64 s, and
    neither if it lasts 15 s.
    """
    start, end = entry.times
    if duration <= end - start + _SLACK:
        if entry.shared and duration < end - _SLACK:
            return f"lasts {duration:.1f} s: one of several listed parts, but its name has no times"
        return None
    if duration < end - _SLACK:
        return (
            f"lasts {duration:.1f} s: neither the part of {end - start:g} s nor a video that "
            f"reaches from {start:g} to {end:g} s"
        )
    entry.start, entry.end = start, end
    return None


def _header(path: Path) -> list[str] | None:
    """Column names, or None if the file is no list of Kinetics."""
    _, first = next(cells(path, ","), ("", []))
    names = [name.lower() for name in first]
    return names if {"youtube_id", "time_start", "time_end"} <= set(names) else None


def _rows(path: Path) -> Iterator[tuple[str, int, int, str | None, str]]:
    header = _header(path) or []
    for where, row in list(cells(path, ","))[1:]:
        if len(row) != len(header):
            raise PreparationError(f"{where}: {len(row)} cells under {len(header)} columns")
        one = dict(zip(header, row, strict=True))
        try:
            start, end = (int(float(one[name])) for name in ("time_start", "time_end"))
        except ValueError:
            raise PreparationError(
                f"{where}: times {one['time_start']!r} … {one['time_end']!r} are no numbers"
            ) from None
        yield one["youtube_id"], start, end, one.get("label") or None, where


def _find(
    listing: Listing, disk: Inventory, entry: Entry, video: str, start: int, end: int
) -> bool:
    """Set the path of an entry; whether it lies in a replacement folder."""
    timed = disk.by_name.get(entry.name) or disk.by_name.get(f"{video}_{start}_{end}")
    paths = timed or disk.by_name.get(video) or []
    if not timed:
        entry.times = (float(start), float(end))
    listing.known |= set(paths)  # a replaced original is not unlisted
    best = [path for path in paths if _replacement(path)] or _in_place(paths, entry)
    if len(best) > 1:
        cause = f"{entry.where}: may be any of {', '.join(best[:4])}"
        listing.add("ambiguous", entry.split, entry.name, cause)
        entry.path = None
        return False
    entry.path = best[0] if best else None
    return bool(best) and _replacement(best[0])


def _in_place(paths: list[str], entry: Entry) -> list[str]:
    """Those in a folder of the split and of the class, as far as that tells them apart."""
    for names in (set(_SPLITS[entry.split]), {plain(entry.label)}):
        fitting = [p for p in paths if names & {plain(f) for f in folders_of(p)}]
        paths = fitting or paths
    return paths


def _replacement(path: str) -> bool:
    return any(folder.lower().startswith("replacement") for folder in folders_of(path))


def _check_class(listing: Listing, entry: Entry, spelt: dict[str, str]) -> None:
    """A folder named as another class than the list says: one of both is wrong."""
    if entry.path is None or not entry.label:
        return
    folder = plain((folders_of(entry.path) or ("",))[-1])
    if spelt.get(folder, entry.label) != entry.label:
        cause = f"{entry.where}: {entry.label!r}, but it lies in a folder of {spelt[folder]!r}"
        listing.add("label", entry.split, entry.name, f"{cause}; the list is taken")


def plain(name: str) -> str:
    """A class name without case, blanks and signs: downloaders write them in several ways."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
