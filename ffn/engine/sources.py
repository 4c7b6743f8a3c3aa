"""Where the frames of a config come from: the video files, or a clip store made from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ffn import data
from ffn.engine.config import ConfigError
from ffn.engine.options import DataConfig, DataFormat, Order


def store_place(options: DataConfig) -> str:
    """Folder or address of the clip store of a config."""
    return options.store if "://" in options.store else str(Path(options.root) / options.store)


def open_store(options: DataConfig, *, resize: int) -> data.ClipStore | None:
    """The clip store that the videos are read from; None if it is their files.

    Args:
        options: ``config.data``.
        resize: short side that the frames will be brought to, in pixels.

    Raises:
        ConfigError: its frames were made smaller than that.
        data.StoreError: there is no store, or it is damaged.
    """
    if options.format is DataFormat.video:
        return None
    store = data.ClipStore(
        store_place(options), root=options.root, cache_gib=options.store_cache_gib
    )
    if store.manifest.short_side < resize:
        raise ConfigError(
            f"the store {store.path} was packed at a short side of {store.manifest.short_side}, "
            f"less than the {resize} that is asked for (data.resize): frames would be enlarged "
            "again; pack at that size, or use data.format=video"
        )
    return store


def frame_source(options: DataConfig, store: data.ClipStore | None) -> dict[str, Any]:
    """Arguments of ``data.VideoDataset`` that say where frames come from."""
    if store is not None:
        return {"source": store.open_record}
    pattern = {} if options.frame_pattern is None else {"pattern": options.frame_pattern}
    return {"decoder": options.decoder.value, **pattern}


def training_order(
    options: DataConfig, store: data.ClipStore | None, records: Sequence[data.Record]
) -> Callable[[int, int], np.ndarray] | None:
    """What makes the order of each epoch; None if it is uniformly random."""
    if options.order is not Order.pages:
        return None
    pages = store.pages(records, options.page_mib * 2**20)
    return partial(data.page_order, pages, window=options.page_window)
