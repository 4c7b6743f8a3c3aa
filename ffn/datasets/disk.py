"""What lies under the folder of a data set: video files, folders of frames, lists."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from ffn.data.annotations import VIDEO_SUFFIXES

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
LIST_SUFFIXES = (".csv", ".json", ".txt")
# A folder with one of these holds what preparation itself made: copies, an index.
MARK = "derived.json"
JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class Inventory:
    """Paths relative to the root, with forward slashes, sorted.

    Attributes:
        root: The folder that was searched.
        videos: Files with the suffix of a video.
        folders: Folders that hold images and no video.
        lists: Files that may be annotation lists.
    """

    root: Path
    videos: tuple[str, ...]
    folders: tuple[str, ...]
    lists: tuple[str, ...]

    @cached_property
    def by_name(self) -> dict[str, list[str]]:
        """Videos by their name without suffix, and frame folders by their name.

        Folders stand under a name only where no video has it: frames are taken out of videos.
        """
        found: dict[str, list[str]] = defaultdict(list)
        for path in self.videos:
            found[bare(path)].append(path)
        videos = set(found)
        for path in self.folders:
            if bare(path) not in videos:
                found[bare(path)].append(path)
        return dict(found)

    def within(self, folder: str | os.PathLike[str]) -> Inventory:
        """The same with the videos and frame folders below one folder alone, and all lists.

        Raises:
            NotADirectoryError: if there is no such folder below the root.
        """
        below = (self.root / folder).absolute()
        if not below.is_dir() or not below.is_relative_to(self.root):
            raise NotADirectoryError(f"{below} is no folder below {self.root}")
        start = "" if below == self.root else f"{below.relative_to(self.root).as_posix()}/"
        videos = tuple(path for path in self.videos if path.startswith(start))
        folders = tuple(path for path in self.folders if path.startswith(start))
        return Inventory(self.root, videos, folders, self.lists)

    def find_list(self, pattern: str) -> list[Path]:
        """Files whose whole name matches a regular expression, in any case."""
        form = re.compile(pattern, re.IGNORECASE)
        return [self.root / p for p in self.lists if form.fullmatch(PurePosixPath(p).name)]


def scan(root: Path, skip: Iterable[Path] = ()) -> Inventory:
    """Look through a folder and all below it.

    Hidden folders, those in `skip`, and those that preparation itself made are left out.
    Links are followed, each target once.
    """
    left_out = {os.path.realpath(path) for path in skip}
    videos, folders, lists = [], [], []
    waiting, seen = [""], set(left_out)
    while waiting:
        here = waiting.pop()
        real = os.path.realpath(root / here)
        if real in seen:
            continue
        seen.add(real)
        with os.scandir(root / here) as listed:
            entries = [entry for entry in listed if not entry.name.startswith(".")]
        names = {entry.name for entry in entries}
        if here and names & {MARK, JOURNAL}:
            continue
        place = f"{here}/" if here else ""
        kinds = defaultdict(list)
        for entry in entries:
            suffix = os.path.splitext(entry.name)[1].lower()
            if entry.is_dir():
                waiting.append(place + entry.name)
            elif suffix in VIDEO_SUFFIXES:
                kinds["video"].append(place + entry.name)
            elif suffix in IMAGE_SUFFIXES:
                kinds["image"].append(entry.name)
            elif suffix in LIST_SUFFIXES:
                kinds["list"].append(place + entry.name)
        videos += kinds["video"]
        lists += kinds["list"]
        if kinds["image"] and not kinds["video"] and here:
            folders.append(here)
    return Inventory(root, tuple(sorted(videos)), tuple(sorted(folders)), tuple(sorted(lists)))


def bare(path: str) -> str:
    """Name of a video without folders and suffixes: `a/x.mp4.webm` is `x`."""
    name = PurePosixPath(path).name
    while os.path.splitext(name)[1].lower() in VIDEO_SUFFIXES:
        name = os.path.splitext(name)[0]
    return name


def folders_of(path: str) -> tuple[str, ...]:
    """Names of the folders that a path goes through, outermost first."""
    return PurePosixPath(path).parts[:-1]
