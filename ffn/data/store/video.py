"""A video of a clip store: read frames by index and verify their checksums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from ffn.data.decoding import VideoError
from ffn.data.decoding.video import check_indices, frames_between
from ffn.data.store.clip import Header, decode_frame
from ffn.data.store.layout import shard_name
from ffn.data.store.remote import why
from ffn.data.store.shards import ChecksumError, OpenShards, Span
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
        pieces = self._frames(chosen, check=self._check)
        for image, index, data in zip(images, chosen, pieces, strict=True):
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
        for _ in self._frames(range(len(self)), check=True):
            pass

    def _check_row(self) -> None:
        if self._shard >= len(self._shards.shards):
            raise self._damaged("store.json does not name the shard")
        held = self._shards.shards[self._shard]
        end = int(self.row["offset"]) + int(self.row["bytes"])
        if end > held.bytes:
            raise self._damaged(
                f"the index says that it ends at byte {end:,}; store.json says that the shard has "
                f"{held.bytes:,}"
            )
        if Header.length(len(self), self.timed) + len(self) > self.row["bytes"]:  # a byte a frame
            raise self._damaged(f"{len(self):,} frames do not fit into its bytes")

    def _frames(self, indices: Sequence[int], *, check: bool) -> Iterator[bytearray]:
        """The stored bytes of frames with ascending indices."""
        spans = [self._span(index) for index in indices]
        pieces = self._shards.read(self._shard, spans, check=check)
        for index in indices:
            with self._naming_damage(index):
                data = next(pieces)
            yield data

    def _span(self, index: int) -> Span:
        """The bytes of a frame in the shard."""
        header = self._header()
        first = int(header.ends[index - 1]) if index else 0
        offset = Header.length(len(self), self.timed) + first
        size = int(header.ends[index]) - first
        if size <= 0 or offset + size > self.row["bytes"]:
            raise self._damaged("its header is wrong", index)
        return Span(int(self.row["offset"]) + offset, size, int(header.crcs[index]))

    def _header(self) -> Header:
        if self._cached_header is None:
            length = Header.length(len(self), self.timed)
            span = Span(int(self.row["offset"]), length, int(self.row["crc"]))
            with self._naming_damage():
                data = self._shards.read_header(self._shard, span)
            self._cached_header = Header.from_bytes(data, len(self), self.timed)
        return self._cached_header

    @contextmanager
    def _naming_damage(self, frame: int | None = None) -> Iterator[None]:
        """Turn errors of the shards into errors of this video; no frame: of its header."""
        try:
            yield
        except EOFError:
            raise self._damaged("the shard is truncated", frame) from None
        except FileNotFoundError:
            raise self._damaged("the shard is missing", frame) from None
        except ChecksumError as error:
            which = " of its header" if frame is None else ""
            raise self._damaged(f"the checksum{which} differs{error}", frame) from None
        except OSError as error:
            raise self._damaged(why(error), frame) from None

    @property
    def _shard(self) -> int:
        return int(self.row["shard"])

    def _damaged(self, cause: str, frame: int | None = None) -> VideoError:
        where = f"{self._shards.files.name}, {shard_name(self._shard)}"
        return VideoError(self.path, f"{cause} ({where})", frame)
