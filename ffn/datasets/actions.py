"""Data sets `hmdb51` and `ucf101`: a folder per class, and lists of three train/test folds.

The index of a fold has its test videos in `val.csv`: the data sets have no validation list.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ffn.datasets.disk import Inventory, folders_of, video_name
from ffn.datasets.listing import Entry, Listing, PreparationError, register_dataset
from ffn.datasets.lists import find_lists, read_lines

FOLDS = (1, 2, 3)
_HMDB_LIST = r"(.*)_test_split([123])\.txt"
_HMDB_MARKS = {"0": "unused", "1": "train", "2": "val"}


@register_dataset("hmdb51")
def hmdb51(videos: Inventory, lists: Inventory) -> Listing:
    """Read HMDB51: `CLASS_test_split1.txt` has lines `name.avi 1`; 1: train, 2: test, 0: unused."""
    names = {path.name for path in lists.find_list(_HMDB_LIST)}
    patterns = {name: re.escape(name) for name in names} or {"split": _HMDB_LIST}
    found = find_lists(lists, patterns, tuple(patterns), "HMDB51")
    by_part = {}
    for path in found.values():
        name, fold = re.fullmatch(_HMDB_LIST, path.name, re.IGNORECASE).groups()
        by_part[int(fold), name] = path
    classes = sorted({name for _, name in by_part})
    listing = Listing(classes, _splits(sorted({fold for fold, _ in by_part})))
    if len(classes) != 51:
        listing.notes.append(f"there are lists of {len(classes)} classes; HMDB51 has 51")
    by_class = _by_class(videos)
    for (fold, name), path in sorted(by_part.items()):
        for where, line in read_lines(path):
            video, mark = [*line.rsplit(None, 1), ""][:2]
            if mark not in _HMDB_MARKS:
                raise PreparationError(
                    f"{where}: {line!r}; expected a name and 0, 1 or 2, e.g. 'clip.avi 1'"
                )
            entry = Entry(f"split{fold}/{_HMDB_MARKS[mark]}", f"{name}/{video}", name, where)
            _find(listing, by_class, entry)
            if mark != "0":
                listing.entries.append(entry)
            elif entry.path is not None:
                listing.known.add(entry.path)
    return listing


@register_dataset("ucf101")
def ucf101(videos: Inventory, lists: Inventory) -> Listing:
    """Read UCF101: `classInd.txt`, `trainlist01.txt` (path and index from 1), `testlist01.txt`.

    Names of folders and files are compared in lower case: the class HandstandPushups has files
    named v_HandStandPushups.
    """
    patterns = {"class index": r"classInd\.txt"}
    for number in FOLDS:
        patterns[f"split{number}/train"] = rf"trainlist0{number}\.txt"
        patterns[f"split{number}/val"] = rf"testlist0{number}\.txt"
    found = find_lists(lists, patterns, ("class index", "split1/train", "split1/val"), "UCF101")
    classes = _numbered_classes(found["class index"])
    listing = Listing(classes, [split for split in _splits(FOLDS) if split in found])
    if len(classes) != 101:
        listing.notes.append(f"classInd.txt names {len(classes)} classes; UCF101 has 101")
    by_class = _by_class(videos)
    class_of = {name.lower(): name for name in classes}
    for split in listing.splits:
        for where, line in read_lines(found[split]):
            name = line.rpartition(" ")[0] if split.endswith("train") else line
            if len(PurePosixPath(name).parts) < 2:
                raise PreparationError(
                    f"{where}: {line!r}; expected CLASS/NAME, and in a training list the number of "
                    "the class, e.g. 'Archery/v_Archery_g01_c01.avi 3'"
                )
            folder = PurePosixPath(name).parent.name
            label = class_of.get(folder.lower(), folder)
            entry = Entry(split, name, label, where)
            _find(listing, by_class, entry)
            listing.entries.append(entry)
    return listing


def _splits(folds: Iterable[int]) -> list[str]:
    return [f"split{fold}/{part}" for fold in folds for part in ("train", "val")]


def _by_class(videos: Inventory) -> dict[tuple[str, str], list[str]]:
    """Videos by the name of a folder above them and their own, in lower case, without suffix."""
    found = defaultdict(list)
    for paths in videos.by_name.values():
        for path in paths:
            above = folders_of(path)
            for folder in {folder.lower() for folder in above}:
                found[folder, video_name(path).lower()].append(path)
    return found


def _find(listing: Listing, by_class: dict[tuple[str, str], list[str]], entry: Entry) -> None:
    """Set the path of an entry to the video of its name in a folder of its class."""
    folder, name = PurePosixPath(entry.name).parts[-2:]
    paths = by_class.get((folder.lower(), video_name(name).lower()), [])
    exact = [path for path in paths if PurePosixPath(path).name == name]
    listing.choose(entry, exact or paths)


def _numbered_classes(path: Path) -> list[str]:
    """Names of lines `1 ApplyEyeMakeup` in the order of their numbers."""
    rows = [(where, *line.partition(" ")[::2]) for where, line in read_lines(path)]
    wrong = [where for where, number, name in rows if not number.isdigit() or not name.strip()]
    if wrong:
        raise PreparationError(f"{wrong[0]}: expected a number and a class name")
    return [name.strip() for _, _, name in sorted(rows, key=lambda row: int(row[1]))]
