"""Clip stores: data sets packed as JPEG frames in shards, for fast random access to frames."""

from __future__ import annotations

from ffn.data.store.layout import StoreError
from ffn.data.store.packing import PackReport, pack
from ffn.data.store.reader import ClipStore
from ffn.data.store.video import StoredVideo
