"""A video of a clip store: its frames by number, each checked before it is decoded."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from ffn.data.decoding import VideoError
from ffn.data.decoding.video import check_indices, frames_between
from ffn.data.store.clip import Head, decode_frame
from ffn.data.store.files import OpenShards
from ffn.data.store.layout import shard_name


class StoredVideo:
    """A video of a store; what `open_video` returns, from another place.

    Args:
        path: The key.
        row: Of the index, of dtype `ffn.data.store.layout.CLIP`.
        shards: Of the store.
        form: `jpeg` or `raw`.
        check: Compare the checksum of each frame that is read.
    """

    def __init__(
        self, path: str, row: np.void, shards: OpenShards, *, form: str, check: bool
    ) -> None:
        self.path, self.row = path, row
        self._shards, self._form, self._check = shards, form, check
        self._known_head: Head | None = None

    def __len__(self) -> int:
        return int(self.row["frames"])

    @property
    def timed(self) -> bool:
        """Whether frames have times; those of a folder of images have none,
        nor those of a few kinds of files."""
        return bool(self.row["timed"])

    @property
    def times(self) -> np.ndarray | None:
        """When each frame is shown, (N,) float64, in seconds; None if frames have no times."""
        return self._head().times

    def read(self, indices: Iterable[int]) -> Tensor:
        """Frames at `indices`, in that order; repeated indices are decoded once.

        Returns:
            uint8 RGB of shape (N, H, W, 3).

        Raises:
            VideoError: if an index is outside the video, or the clip is damaged.
            ValueError: if no frame is asked for.
        """
        wanted = list(indices)
        check_indices(self.path, wanted, len(self))
        height, width = int(self.row["height"]), int(self.row["width"])
        chosen = sorted(set(wanted))
        images = torch.empty(len(chosen), height, width, 3, dtype=torch.uint8)
        for image, index in zip(images, chosen, strict=True):
            data = self._frame(index, check=self._check)
            try:
                decode_frame(data, self._form, image)
            except ValueError as error:
                raise self._damaged(str(error), index) from None
        if chosen == wanted:
            return images
        place = {index: n for n, index in enumerate(chosen)}
        return images[[place[index] for index in wanted]]

    def between(self, start: float | None, end: float | None) -> range:
        """Indices of the frames shown at a time in [start, end), in seconds of the original.

        Raises:
            VideoError: if there is none, or the frames have no times.
        """
        return frames_between(self.path, self.times, start, end)

    def verify(self) -> None:
        """Compare the checksums of the head and of all frames.

        Raises:
            VideoError: at the first that is wrong.
        """
        for index in range(len(self)):
            self._frame(index, check=True)

    def _frame(self, index: int, *, check: bool) -> bytearray:
        """The bytes of a frame as they were packed."""
        head = self._head()
        first = int(head.ends[index - 1]) if index else 0
        offset = Head.length(len(self), self.timed) + first
        size = int(head.ends[index]) - first
        if size <= 0 or offset + size > self.row["bytes"]:
            raise self._damaged("the tables of its frames are wrong", index)
        data = self._bytes(offset, size, index)
        if check and zlib.crc32(data) != head.crcs[index]:
            raise self._damaged("the checksum differs", index)
        return data

    def _head(self) -> Head:
        if self._known_head is None:
            data = self._bytes(0, Head.length(len(self), self.timed))
            if zlib.crc32(data) != self.row["crc"]:
                raise self._damaged("the checksum of its head differs")
            self._known_head = Head.from_bytes(bytes(data), len(self), self.timed)
        return self._known_head

    def _bytes(self, offset: int, size: int, frame: int | None = None) -> bytearray:
        number, start = int(self.row["shard"]), int(self.row["offset"])
        try:
            return self._shards.read(number, start + offset, size)
        except EOFError:
            raise self._damaged("the shard is cut short", frame) from None
        except IndexError:
            raise self._damaged("store.json does not name the shard", frame) from None
        except FileNotFoundError:
            raise self._damaged("the shard is missing", frame) from None
        except OSError as error:
            raise self._damaged(str(error), frame) from None

    def _damaged(self, cause: str, frame: int | None = None) -> VideoError:
        where = f"{self._shards.files.name}, {shard_name(int(self.row['shard']))}"
        return VideoError(self.path, f"{cause} ({where})", frame)
