"""Data sets `k400`, `k600`, `k700`: Kinetics-400, -600, -700 and -700-2020.

The lists are csv with the columns label,youtube_id,time_start,time_end,split; test lists of some
releases have no labels. Downloaders name the files `ID_000010_000020.mp4` or `ID.mp4`, in a folder
per split, per class, or both, in other containers, and with stacked suffixes. A file `ID.mp4` may
be the part or the whole source video; `Entry.resolve_times` decides by its duration.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path

from ffn.datasets.disk import SPLIT_FOLDERS, Inventory, folders_of
from ffn.datasets.listing import Entry, Listing, PreparationError, register_dataset
from ffn.datasets.lists import find_lists, read_table

_COLUMNS = frozenset({"youtube_id", "time_start", "time_end"})


def kinetics(videos: Inventory, lists: Inventory, *, count: int) -> Listing:
    """Read Kinetics with a number of classes: 400, 600 or 700, also 700-2020."""
    title = f"Kinetics-{count}"
    patterns = {
        split: f"(?:.*[-_])?(?:{'|'.join(names)})(?:[-_].*)?\\.csv"
        for split, names in SPLIT_FOLDERS.items()
    }
    found = find_lists(lists, patterns, (), title, _COLUMNS)
    labelled = found.get("train") or found.get("val")
    if labelled is None:
        raise PreparationError(
            f"no official list of {title} under {lists.root}: expected train.csv and val.csv (or "
            "validate.csv) with the columns label,youtube_id,time_start,time_end,split. Name their "
            "folder with --annotations. For videos in a folder per class without lists, use the "
            "data set `folder`"
        )
    entries = {split: _read_entries(split, path) for split, path in found.items()}
    parts = {(_video_id(e), e.times) for one in entries.values() for e in one}
    ids = Counter(video for video, _ in parts)
    classes = {entry.label for entry in entries["train" if "train" in found else "val"]}
    listing = Listing(sorted(classes - {""}), [])
    if len(listing.classes) != count:
        listing.notes.append(
            f"{labelled.name} names {len(listing.classes)} classes; {title} has {count}"
        )
    for split, path in found.items():
        for entry in entries[split]:
            entry.shared = ids[_video_id(entry)] > 1
            _find(listing, videos, entry)
        listing.add_list(split, entries[split], path)
    return listing


for _count in (400, 600, 700):
    register_dataset(f"k{_count}")(partial(kinetics, count=_count))


def _read_entries(split: str, path: Path) -> list[Entry]:
    entries = []
    for where, row in read_table(path):
        try:
            start, end = (int(float(row[name])) for name in ("time_start", "time_end"))
        except (ValueError, OverflowError):
            raise PreparationError(
                f"{where}: times {row['time_start']!r} … {row['time_end']!r} are not numbers"
            ) from None
        name = f"{row['youtube_id']}_{start:06d}_{end:06d}"
        entries.append(Entry(split, name, row.get("label", ""), where, times=(start, end)))
    return entries


def _video_id(entry: Entry) -> str:
    return entry.name.rsplit("_", 2)[0]


def _find(listing: Listing, videos: Inventory, entry: Entry) -> None:
    """Set the path of an entry; its times are decided if they are in the name of the file."""
    video, (start, end) = _video_id(entry), entry.times
    timed = videos.by_name.get(entry.name) or videos.by_name.get(f"{video}_{start}_{end}")
    paths = timed or videos.by_name.get(video, [])
    if timed:
        entry.times = None
    listing.known |= set(paths)  # do not report a replaced original as unlisted
    replacements = [path for path in paths if _is_replacement(path)]
    listing.choose(entry, replacements or _in_own_folder(paths, entry))


def _in_own_folder(paths: list[str], entry: Entry) -> list[str]:
    """Keep the paths in a folder of the split, then of the class, if there are any."""
    for names in (set(SPLIT_FOLDERS[entry.split]), {_plain(entry.label)}):
        fitting = [p for p in paths if names & {_plain(f) for f in folders_of(p)}]
        paths = fitting or paths
    return paths


def _is_replacement(path: str) -> bool:
    return any(folder.lower().startswith("replacement") for folder in folders_of(path))


def _plain(name: str) -> str:
    """A class name in lower case without blanks and punctuation, which downloaders vary."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
