"""Suffixes of the files that are videos, and of the images in a folder of frames."""

from __future__ import annotations

VIDEO_SUFFIXES = (
    *(".3gp", ".avi", ".flv", ".gif", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4"),
    *(".mpeg", ".mpg", ".mts", ".ogv", ".ts", ".vob", ".webm", ".wmv"),
)
IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
