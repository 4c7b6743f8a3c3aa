"""Registry of data sets: the functions that read their official lists."""

from __future__ import annotations

from collections.abc import Callable

from ffn.datasets.disk import Inventory
from ffn.datasets.listing import Listing
from ffn.registry import Registry

Reader = Callable[[Inventory, Inventory], Listing]

DATASETS: Registry[Reader] = Registry("data set")


def register_dataset(name: str) -> Callable[[Reader], Reader]:
    """Decorator that adds a data set to `prepare` and `ffn prepare`.

    The function gets the files under `--root` and the files under `--annotations` (default: the
    same), and returns a `Listing`: classes, splits, and an `Entry` for each listed video. It runs
    once, in the main process, and opens no video; `prepare` reads the videos in worker processes.
    `videos.by_name` finds videos by name in any folder. A listing without splits is split at random
    (`SplitSettings`).

    Example:
        >>> @register_dataset("mine")
        ... def mine(videos: Inventory, lists: Inventory) -> Listing:
        ...     listing = Listing(classes=["jump", "run"], splits=["train", "val"])
        ...     for split in listing.splits:
        ...         for where, (path, label) in read_rows(lists.root / f"{split}.csv", ","):
        ...             listing.entries.append(Entry(split, path, label, where, path))
        ...     return listing
    """
    return DATASETS.register(name)
