"""Names of files: videos, frames, and what is no part of a data set."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

VIDEO_SUFFIXES = (
    *(".3gp", ".avi", ".flv", ".gif", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4"),
    *(".mpeg", ".mpg", ".mts", ".ogv", ".ts", ".vob", ".webm", ".wmv"),
)
IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
SYSTEM_NAMES = {  # in lower case: of macOS, Windows, Linux, Synology, QNAP
    *("__macosx", "icon\r", "desktop.ini", "thumbs.db", "ehthumbs.db", "$recycle.bin"),
    *("system volume information", "lost+found", "@eadir", "#recycle", "#snapshot", "@recycle"),
}
COPIES = "derived.json"  # of `ffn prepare`, beside the copies
# One of these files is in every folder that a tool wrote: an index, copies, a clip store, a report,
# a run, results.
TOOL_FILES = (
    *(COPIES, "dataset.json", "store.json", "pack.db", "report.csv"),
    *("log.jsonl", "results.json", "results.png"),
)


def is_system_name(name: str) -> bool:
    """Whether a file or folder is hidden, or one that operating systems write beside any data."""
    return name.startswith(".") or name.lower() in SYSTEM_NAMES


def visible(folder: Path) -> list[Path]:
    """Files and folders in a folder, by name, without those of operating systems."""
    return [entry for entry in sorted(folder.iterdir()) if not is_system_name(entry.name)]


def are_frames(names: Iterable[str]) -> bool:
    """Whether a folder that holds these names is a video: images, no video, and no `TOOL_FILES`."""
    suffixes = {os.path.splitext(name)[1].lower() for name in names}
    is_other = suffixes & {*VIDEO_SUFFIXES} or {*names} & {*TOOL_FILES}
    return not is_other and bool(suffixes & {*IMAGE_SUFFIXES})


def is_frame_folder(path: Path) -> bool:
    """Whether a path is a folder of frames."""
    return path.is_dir() and are_frames([entry.name for entry in visible(path)])


def videos_in(folder: Path) -> list[Path]:
    """Videos directly in a folder, by name: files, and folders of frames without a file beside."""
    entries = visible(folder)
    files = {e for e in entries if e.suffix.lower() in VIDEO_SUFFIXES and not e.is_dir()}
    stems = {file.stem for file in files}
    return [e for e in entries if e in files or (e.name not in stems and is_frame_folder(e))]


def has_tool_file(folder: Path) -> bool:
    """Whether a folder holds one of `TOOL_FILES`."""
    return any((folder / name).exists() for name in TOOL_FILES)


def is_tool_folder(folder: Path) -> bool:
    """Whether a tool wrote a folder, or all folders in it, as in ``runs``.

    A folder with videos is none, unless they are copies.
    """
    entries = visible(folder)
    if any(entry.suffix.lower() in VIDEO_SUFFIXES for entry in entries):
        return (folder / COPIES).exists()
    folders = [entry for entry in entries if entry.is_dir()]
    return has_tool_file(folder) or (bool(folders) and all(map(has_tool_file, folders)))
