"""A packed form of a data set, for training over many epochs: decoded at a small cost."""

from __future__ import annotations

from ffn.data.store.layout import StoreError
from ffn.data.store.order import page_order
from ffn.data.store.packing import PackReport, pack
from ffn.data.store.reader import ClipStore
from ffn.data.store.video import StoredVideo

__all__ = ["ClipStore", "PackReport", "StoreError", "StoredVideo", "pack", "page_order"]
