"""Find the video files, frame folders and list files under the folder of a data set."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from ffn.data.suffixes import COPIES, VIDEO_SUFFIXES, are_frames, is_system_name

INDEX = {"dataset.json", "problems.csv"}  # files of the folder of an index
LIST_SUFFIXES = (".align", ".csv", ".json", ".txt")
SPLIT_FOLDERS = {  # names of the folder, and parts of that of the list, in lower case
    "train": ("train", "training"),
    "val": ("val", "valid", "validate", "validation"),
    "test": ("test", "testing"),
}


@dataclass(frozen=True)
class Inventory:
    """Sorted paths relative to the root, with forward slashes.

    Attributes:
        root: The folder that was searched.
        videos: Files with a video suffix.
        folders: Folders that hold images and no video.
        lists: Files that may be annotation lists.
    """

    root: Path
    videos: tuple[str, ...]
    folders: tuple[str, ...]
    lists: tuple[str, ...]

    @cached_property
    def by_name(self) -> dict[str, list[str]]:
        """Paths of videos by file name without suffix, and of frame folders by folder name.

        A frame folder is left out if a video file has the same name: its frames were extracted
        from that video.
        """
        found: dict[str, list[str]] = defaultdict(list)
        videos = {video_name(path) for path in self.videos}
        folders = (path for path in self.folders if video_name(path) not in videos)
        for path in (*self.videos, *folders):
            found[video_name(path)].append(path)
        return dict(found)

    def find_list(self, pattern: str) -> list[Path]:
        """List files whose whole name matches a regular expression, ignoring case."""
        expression = re.compile(pattern, re.IGNORECASE)
        return [self.root / p for p in self.lists if expression.fullmatch(PurePosixPath(p).name)]


def scan(root: Path, skip: Iterable[Path] = ()) -> Inventory:
    """Search a folder recursively.

    Hidden files, those of operating systems, the folders in `skip`, and outputs of earlier
    preparations are left out; the figures that another tool wrote are no frames.
    Symbolic links are followed; each target is searched once.
    """
    videos, folders, lists = [], [], []
    pending, seen = [""], {os.path.realpath(path) for path in skip}
    while pending:
        here = pending.pop()
        real = os.path.realpath(root / here)
        if real in seen:
            continue
        seen.add(real)
        with os.scandir(root / here) as listed:
            entries = [entry for entry in listed if not is_system_name(entry.name)]
        names = {entry.name for entry in entries}
        if here and (COPIES in names or names >= INDEX):
            continue
        prefix = f"{here}/" if here else ""
        for entry in entries:
            suffix = os.path.splitext(entry.name)[1].lower()
            if entry.is_dir():
                pending.append(prefix + entry.name)
            elif suffix in VIDEO_SUFFIXES:
                videos.append(prefix + entry.name)
            elif suffix in LIST_SUFFIXES:
                lists.append(prefix + entry.name)
        if here and are_frames(names):
            folders.append(here)
    return Inventory(root, tuple(sorted(videos)), tuple(sorted(folders)), tuple(sorted(lists)))


def video_name(path: str) -> str:
    """Name of a video without folders and suffixes: `a/x.mp4.webm` becomes `x`."""
    name = PurePosixPath(path).name
    while os.path.splitext(name)[1].lower() in VIDEO_SUFFIXES:
        name = os.path.splitext(name)[0]
    return name


def folders_of(path: str) -> tuple[str, ...]:
    """Names of the folders of a path, outermost first."""
    return PurePosixPath(path).parts[:-1]
