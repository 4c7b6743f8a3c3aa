"""Search the folders of a data set, and refuse those that its preparation would leave out."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from ffn.data.tool_files import INDEX_JOURNAL
from ffn.datasets.disk import Inventory, scan
from ffn.datasets.index import previous_files
from ffn.datasets.listing import PreparationError


def search(root: Path, output: Path, skip: list[Path]) -> Inventory:
    """The files of the data set, without those of the index and in the folders to skip.

    Raises:
        PreparationError: if the folder of the index is one of the data set, with videos.
    """
    if os.path.realpath(output) == os.path.realpath(root):
        disk, own = scan(root, skip), previous_files(output)
        return replace(disk, lists=tuple(path for path in disk.lists if path not in own))
    if _is_new_folder_inside(output, root):
        inside = scan(output, skip)
        found = [*inside.videos, *inside.folders]
        if found:
            raise PreparationError(
                f"the folder of the index, {output}, holds videos ({found[0]}), which would be "
                "left out; name another one with --output"
            )
    return scan(root, [*skip, output])


def about_lists_in(output: Path, root: Path) -> str:
    """A note for an error of lists, if there are some in the folder of the index."""
    if not _is_new_folder_inside(output, root) or not scan(output).lists:
        return ""
    return f". Lists in {output} are not read: it is the folder of the index (--output)"


def _is_new_folder_inside(output: Path, root: Path) -> bool:
    """Whether the folder of an index is below the root, and no preparation wrote to it."""
    inside = output.is_dir() and output != root and output.is_relative_to(root)
    return inside and not (output / INDEX_JOURNAL).exists()


def search_annotations(annotations: str | Path) -> Inventory:
    """The files in a folder of annotations.

    Raises:
        PreparationError: if it does not exist.
    """
    folder = Path(annotations).absolute()
    if not folder.is_dir():
        raise PreparationError(f"the folder of annotations {folder} does not exist")
    return scan(folder)
