"""Clip stores: data sets packed for fast random access to frames over many epochs."""

from __future__ import annotations

from ffn.data.store.layout import StoreError
from ffn.data.store.packing import PackReport, pack
from ffn.data.store.reader import ClipStore, page_order
from ffn.data.store.video import StoredVideo

__all__ = ["ClipStore", "PackReport", "StoreError", "StoredVideo", "pack", "page_order"]
