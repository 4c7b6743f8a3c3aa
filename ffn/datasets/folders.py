"""Data set `folder`: videos in a folder per class, with or without folders of splits above."""

from __future__ import annotations

from pathlib import PurePosixPath

from ffn.datasets.disk import SPLIT_FOLDERS, Inventory
from ffn.datasets.listing import Entry, Listing, PreparationError, register_dataset


@register_dataset("folder")
def folder(videos: Inventory, lists: Inventory) -> Listing:
    """Read `SPLIT/CLASS/video`, or `CLASS/video` without splits; a video may be a frame folder.

    A frame folder beside a video file of the same name is left out.

    Raises:
        PreparationError: if there is no such video.
    """
    if lists.root != videos.root:
        raise PreparationError("the data set folder has no lists; leave --annotations out")
    # A folder beside a video of its name holds the frames of that video.
    beside = {str(PurePosixPath(path).with_suffix("")) for path in videos.videos}
    paths = [*videos.videos, *(path for path in videos.folders if path not in beside)]
    splits = _split_folders(paths)
    listing = Listing([], [split for split in SPLIT_FOLDERS if split in splits.values()])
    depth = 3 if splits else 2
    for path in paths:
        parts = PurePosixPath(path).parts
        if len(parts) == depth and (not splits or parts[0] in splits):
            split = splits[parts[0]] if splits else ""
            listing.entries.append(Entry(split, path, parts[-2], path, path))
    if not listing.entries:
        raise PreparationError(
            f"{videos.root} holds no video as CLASS/video or SPLIT/CLASS/video, with SPLIT train, "
            "val or test; a video is a file or a folder of frames"
        )
    listing.classes = sorted({entry.label for entry in listing.entries})
    return listing


def _split_folders(paths: list[str]) -> dict[str, str]:
    """The split of each folder at the top that is named as one."""
    tops = {PurePosixPath(path).parts[0] for path in paths if "/" in path}
    aliases = {name: split for split, names in SPLIT_FOLDERS.items() for name in names}
    splits = {top: aliases[top.lower()] for top in tops if top.lower() in aliases}
    for split in splits.values():
        if len(doubled := sorted(top for top in splits if splits[top] == split)) > 1:
            raise PreparationError(f"several folders are for {split}: {', '.join(doubled)}")
    return splits
