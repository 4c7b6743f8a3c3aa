"""Names of the files that are videos or frames, and of those that are no part of a data set."""

from __future__ import annotations

VIDEO_SUFFIXES = (
    *(".3gp", ".avi", ".flv", ".gif", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4"),
    *(".mpeg", ".mpg", ".mts", ".ogv", ".ts", ".vob", ".webm", ".wmv"),
)
IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
SYSTEM_NAMES = ("__MACOSX", "@eaDir", "#recycle", "$RECYCLE.BIN", "Thumbs.db", "desktop.ini")


def is_system_name(name: str) -> bool:
    """Whether a file or folder is hidden, or one that operating systems write beside any data."""
    return name.startswith(".") or name in SYSTEM_NAMES
