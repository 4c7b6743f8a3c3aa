"""Data sets `k400`, `k600`, `k700`: Kinetics-400, -600, -700 and -700-2020.

The lists are csv with the columns label,youtube_id,time_start,time_end,split; test lists of some
releases have no labels. Downloaders name the files `ID_000010_000020.mp4` or `ID.mp4`, in a folder
per split, per class, or both, in other containers, and with stacked suffixes. A file `ID.mp4` may
be the part or the whole source video; `Entry.resolve_times` decides by its duration.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ffn.datasets.disk import Inventory, folders_of
from ffn.datasets.listing import Entry, Listing, PreparationError, register_dataset
from ffn.datasets.lists import choose_lists, read_rows

_SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "validate", "validation", "valid"),
    "test": ("test", "testing"),
}

# Video id, start, end, label or None, position in the list.
Row = tuple[str, int, int, str | None, str]


@register_dataset("k400")
def k400(videos: Inventory, lists: Inventory) -> Listing:
    """Read Kinetics-400."""
    return _kinetics(videos, lists, 400)


@register_dataset("k600")
def k600(videos: Inventory, lists: Inventory) -> Listing:
    """Read Kinetics-600."""
    return _kinetics(videos, lists, 600)


@register_dataset("k700")
def k700(videos: Inventory, lists: Inventory) -> Listing:
    """Read Kinetics-700 or Kinetics-700-2020."""
    return _kinetics(videos, lists, 700)


def _kinetics(videos: Inventory, lists: Inventory, count: int) -> Listing:
    title = f"Kinetics-{count}"
    chosen = _find_lists(lists, title)
    rows = {split: list(_rows(path)) for split, path in chosen.items()}
    source = "train" if "train" in rows else "val"
    listing = Listing(sorted({label for *_, label, _ in rows[source] if label}), [])
    if len(listing.classes) != count:
        listing.notes.append(
            f"{chosen[source].name} names {len(listing.classes)} classes; {title} has {count}"
        )
    parts = {row[:3] for one in rows.values() for row in one}
    ids = Counter(video for video, *_ in parts)
    replaced = sum(
        _add_rows(listing, videos, split, chosen[split], rows[split], ids)
        for split in _SPLITS
        if split in rows
    )
    if replaced:
        listing.notes.append(f"{replaced} videos are taken from a replacement folder")
    return listing


def _add_rows(
    listing: Listing, videos: Inventory, split: str, path: Path, rows: list[Row], ids: Counter[str]
) -> int:
    """Add the entries of one list; returns the number from a replacement folder."""
    replaced = 0
    unlabelled = all(label is None for *_, label, _ in rows)
    if unlabelled:
        listing.notes.append(f"{path.name} holds no labels: its {len(rows)} videos are left out")
    else:
        listing.splits.append(split)
    for video, start, end, label, where in rows:
        if label is None and not unlabelled:
            cause = f"{where}: has no label, unlike other rows"
            listing.add_problem("label", split, video, cause)
        entry = Entry(split, f"{video}_{start:06d}_{end:06d}", label or "", where)
        entry.shared = ids[video] > 1
        replaced += _find(listing, videos, entry, video, start, end)
        if label is not None:
            listing.entries.append(entry)
        elif entry.path is not None:
            listing.known.add(entry.path)
    return replaced


def _find_lists(lists: Inventory, title: str) -> dict[str, Path]:
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
            "folder with --annotations. For videos in a folder per class without lists, use the "
            "data set `folder`"
        )
    return chosen


def _header(path: Path) -> list[str] | None:
    """Column names; None if the file is not a list of Kinetics."""
    _, first = next(read_rows(path, ","), ("", []))
    names = [name.lower() for name in first]
    return names if {"youtube_id", "time_start", "time_end"} <= set(names) else None


def _rows(path: Path) -> Iterator[Row]:
    header = _header(path) or []
    for where, row in list(read_rows(path, ","))[1:]:
        if len(row) != len(header):
            raise PreparationError(f"{where}: {len(row)} cells under {len(header)} columns")
        one = dict(zip(header, row, strict=True))
        try:
            start, end = (int(float(one[name])) for name in ("time_start", "time_end"))
        except (ValueError, OverflowError):
            raise PreparationError(
                f"{where}: times {one['time_start']!r} … {one['time_end']!r} are not numbers"
            ) from None
        yield one["youtube_id"], start, end, one.get("label") or None, where


def _find(
    listing: Listing, videos: Inventory, entry: Entry, video: str, start: int, end: int
) -> bool:
    """Set the path of an entry; returns whether it is in a replacement folder."""
    timed = videos.by_name.get(entry.name) or videos.by_name.get(f"{video}_{start}_{end}")
    paths = timed or videos.by_name.get(video) or []
    if not timed:
        entry.times = (float(start), float(end))
    listing.known |= set(paths)  # do not report a replaced original as unlisted
    best = [path for path in paths if _replacement(path)] or _in_own_folder(paths, entry)
    if len(best) > 1:
        cause = f"{entry.where}: may be any of {', '.join(best[:4])}"
        listing.add_problem("ambiguous", entry.split, entry.name, cause)
        entry.path = None
        return False
    entry.path = best[0] if best else None
    return bool(best) and _replacement(best[0])


def _in_own_folder(paths: list[str], entry: Entry) -> list[str]:
    """Keep the paths in a folder of the split, then of the class, if there are any."""
    for names in (set(_SPLITS[entry.split]), {plain(entry.label)}):
        fitting = [p for p in paths if names & {plain(f) for f in folders_of(p)}]
        paths = fitting or paths
    return paths


def _replacement(path: str) -> bool:
    return any(folder.lower().startswith("replacement") for folder in folders_of(path))


def plain(name: str) -> str:
    """A class name in lower case without blanks and punctuation, which downloaders vary."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
