"""Names of files: videos, frames, and what is no part of a data set."""

from __future__ import annotations

from pathlib import Path

VIDEO_SUFFIXES = (
    *(".3gp", ".avi", ".flv", ".gif", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4"),
    *(".mpeg", ".mpg", ".mts", ".ogv", ".ts", ".vob", ".webm", ".wmv"),
)
IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
SYSTEM_NAMES = ("__MACOSX", "@eaDir", "#recycle", "$RECYCLE.BIN", "Thumbs.db", "desktop.ini")
COPIES = "derived.json"  # of `ffn prepare`, beside the copies
# One of these files is in every folder that a tool wrote: an index, copies, a clip store, a report,
# a run, results.
TOOL_FILES = (
    *(COPIES, "dataset.json", "store.json", "pack.db", "report.csv"),
    *("log.jsonl", "results.json", "results.png"),
)


def is_system_name(name: str) -> bool:
    """Whether a file or folder is hidden, or one that operating systems write beside any data."""
    return name.startswith(".") or name in SYSTEM_NAMES


def has_tool_file(folder: Path) -> bool:
    """Whether a folder holds one of `TOOL_FILES`."""
    return any((folder / name).exists() for name in TOOL_FILES)


def is_tool_folder(folder: Path) -> bool:
    """Whether a tool wrote a folder, or all folders in it, as in ``runs``; then with no video."""
    if has_tool_file(folder):
        return True
    entries = [entry for entry in sorted(folder.iterdir()) if not is_system_name(entry.name)]
    if any(entry.suffix.lower() in VIDEO_SUFFIXES for entry in entries):
        return False
    folders = [entry for entry in entries if entry.is_dir()]
    return bool(folders) and all(map(has_tool_file, folders))
