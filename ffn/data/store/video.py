"""A video of a clip store: read frames by index and verify their checksums."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from ffn.data.decoding import VideoError
from ffn.data.decoding.video import check_indices, frames_between
from ffn.data.store.clip import Header, decode_frame
from ffn.data.store.layout import shard_name
from ffn.data.store.shards import OpenShards
from ffn.limits import FRAME_PIXELS


class StoredVideo:
    """A video of a store, with the interface of the videos that `open_video` returns.

    Args:
        path: Key of the video.
        row: Row of the index, of dtype `ffn.data.store.layout.CLIP`.
        shards: Shards of the store.
        format: `jpeg` or `raw`.
        check: Verify the checksum of each frame that is read.

    Raises:
        VideoError: if the row names bytes that its shard does not have, or more frames than fit
            into them.
    """

    def __init__(
        self, path: str, row: np.void, shards: OpenShards, *, format: str, check: bool
    ) -> None:
        self.path, self.row = path, row
        self._shards, self._format, self._check = shards, format, check
        self._cached_header: Header | None = None
        self._check_row()

    def __len__(self) -> int:
        return int(self.row["frames"])

    @property
    def timed(self) -> bool:
        """Whether frames have times; False for folders of images and files without timestamps."""
        return bool(self.row["timed"])

    @property
    def times(self) -> np.ndarray | None:
        """Time of each frame in seconds, (N,) float64; None if frames have no times."""
        return self._header().times

    def read(self, indices: Iterable[int]) -> Tensor:
        """Frames at `indices`, in that order; repeated indices are decoded once.

        Returns:
            uint8 RGB of shape (N, H, W, 3).

        Raises:
            VideoError: if an index is outside the video, or the clip is damaged.
            ValueError: if no frame is requested.
        """
        wanted = list(indices)
        check_indices(self.path, wanted, len(self))
        height, width = int(self.row["height"]), int(self.row["width"])
        refusal = FRAME_PIXELS.refusal(height * width)
        if refusal:
            raise self._damaged(f"its frames have {width} x {height} pixels: {refusal}")
        chosen = sorted(set(wanted))
        images = torch.empty(len(chosen), height, width, 3, dtype=torch.uint8)
        for image, index in zip(images, chosen, strict=True):
            data = self._frame(index, check=self._check)
            try:
                decode_frame(data, self._format, image)
            except ValueError as error:
                raise self._damaged(str(error), index) from None
        if chosen == wanted:
            return images
        position = {index: n for n, index in enumerate(chosen)}
        return images[[position[index] for index in wanted]]

    def between(self, start: float | None, end: float | None) -> range:
        """Indices of the frames with a time in [start, end), in seconds of the original video.

        Raises:
            VideoError: if there is no such frame, or the frames have no times.
        """
        return frames_between(self.path, self.times, start, end)

    def verify(self) -> None:
        """Verify the checksums of the header and of all frames.

        Raises:
            VideoError: for the first wrong checksum.
        """
        for index in range(len(self)):
            self._frame(index, check=True)

    def _check_row(self) -> None:
        number = int(self.row["shard"])
        if number >= len(self._shards.shards):
            raise self._damaged("store.json does not name the shard")
        end, held = int(self.row["offset"]) + int(self.row["bytes"]), self._shards.shards[number]
        if end > held.bytes:
            raise self._damaged(
                f"the index says that it ends at byte {end:,}; store.json says that the shard has "
                f"{held.bytes:,}"
            )
        if Header.length(len(self), self.timed) + len(self) > self.row["bytes"]:  # a byte a frame
            raise self._damaged(f"{len(self):,} frames do not fit into its bytes")

    def _frame(self, index: int, *, check: bool) -> bytearray:
        """The stored bytes of a frame."""
        header = self._header()
        first = int(header.ends[index - 1]) if index else 0
        offset = Header.length(len(self), self.timed) + first
        size = int(header.ends[index]) - first
        if size <= 0 or offset + size > self.row["bytes"]:
            raise self._damaged("its header is wrong", index)
        data = self._bytes(offset, size, index)
        if check and zlib.crc32(data) != header.crcs[index]:
            raise self._damaged("the checksum differs", index)
        return data

    def _header(self) -> Header:
        if self._cached_header is None:
            data = self._bytes(0, Header.length(len(self), self.timed))
            if zlib.crc32(data) != self.row["crc"]:
                raise self._damaged("the checksum of its header differs")
            self._cached_header = Header.from_bytes(bytes(data), len(self), self.timed)
        return self._cached_header

    def _bytes(self, offset: int, size: int, frame: int | None = None) -> bytearray:
        number, start = int(self.row["shard"]), int(self.row["offset"])
        try:
            return self._shards.read(number, start + offset, size)
        except EOFError:
            raise self._damaged("the shard is truncated", frame) from None
        except FileNotFoundError:
            raise self._damaged("the shard is missing", frame) from None
        except OSError as error:
            raise self._damaged(str(error), frame) from None

    def _damaged(self, cause: str, frame: int | None = None) -> VideoError:
        where = f"{self._shards.files.name}, {shard_name(int(self.row['shard']))}"
        return VideoError(self.path, f"{cause} ({where})", frame)
