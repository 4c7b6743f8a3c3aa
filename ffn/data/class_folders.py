"""Read the videos of a folder with one sub-folder per class."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ffn.data.lists import AnnotationRow
from ffn.data.suffixes import IMAGE_SUFFIXES, VIDEO_SUFFIXES, is_system_name
from ffn.data.tool_files import has_tool_file, is_tool_folder

LIST_SUFFIXES = (".csv", ".tsv", ".txt")
OTHER_TEXTS = ("classes", "licence", "license", "readme")  # names of text files that are no lists


def read_class_folders(folder: Path) -> Iterator[AnnotationRow]:
    """Yield the videos of a folder per class, by class and name.

    Hidden folders and folders that a tool wrote are left out.

    Raises:
        ValueError: if there is no class, a list lies beside the classes, or a class has no video
            or holds folders that are no frames.
    """
    entries = [entry for entry in sorted(folder.iterdir()) if not is_system_name(entry.name)]
    classes = [entry for entry in entries if entry.is_dir() and not is_tool_folder(entry)]
    lists = [e for e in entries if e.suffix.lower() in LIST_SUFFIXES and e.is_file()]
    lists = [e for e in lists if e.stem.lower() not in OTHER_TEXTS]
    if lists:
        raise ValueError(
            f"{folder} holds {lists[0].name} beside {len(classes)} class folders. To read the "
            f"list, give its name (data.root={folder} data.train={lists[0].name}); if the folders "
            "are classes, move the list away"
        )
    if not classes:
        raise ValueError(f"{folder} has no sub-folders of videos; expected one per class")
    for class_folder in classes:
        yield from _videos(class_folder)


def _videos(folder: Path) -> Iterator[AnnotationRow]:
    """The videos of one class: files, and folders of frames."""
    entries = [entry for entry in sorted(folder.iterdir()) if not is_system_name(entry.name)]
    folders = [entry for entry in entries if entry.is_dir()]
    files = [e for e in entries if e.suffix.lower() in VIDEO_SUFFIXES and not e.is_dir()]
    # A class of folders may hold many thousand of them.
    written = [e for e in (folders if files else folders[:1]) if has_tool_file(e)]
    if written:
        raise ValueError(
            f"a tool wrote {written[0]}; expected CLASS/VIDEO in {folder.parent}. Move it out of "
            f"{folder.name}"
        )
    if folders and not _holds_images(folders[0]):
        raise ValueError(
            f"{folders[0]} holds no images, and is no folder of frames; expected CLASS/VIDEO in "
            f"{folder.parent}. If {folder.name} is not a class, give the folder above the classes, "
            f"e.g. data.train={folder.name}"
        )
    videos = sorted([*files, *folders])
    if not videos:
        raise ValueError(
            f"{folder} contains no video; expected files ({' '.join(VIDEO_SUFFIXES)}) "
            "or folders of frames"
        )
    for video in videos:
        yield AnnotationRow(str(video), os.path.abspath(video), folder.name)


def _holds_images(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(entry.name.lower().endswith(IMAGE_SUFFIXES) for entry in entries)
