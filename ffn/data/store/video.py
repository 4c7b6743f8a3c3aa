"""One video of a clip store: encode its frames, and read them by index.

A clip is a header, with an entry of the dtype `FRAME` per frame, and the JPEG frames.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ffn.data.crops import resize
from ffn.data.decoding import Video, VideoError, open_video
from ffn.data.records import Record
from ffn.data.store.layout import Clip, shard_name
from ffn.data.store.remote import Bytes, Files, Part
from ffn.limits import frame_refusal

CHUNK_BYTES = 1 << 29  # of decoded frames in memory at a time
FRAME = np.dtype(
    [
        ("end", "<u8"),  # of its bytes, counted from the end of the header
        ("time", "<f8"),  # in seconds; NaN in a folder of images
        ("crc", "<u4"),  # zlib.crc32 of its bytes
    ]
)


class EncodedClip(NamedTuple):
    """An encoded clip: header and frames, and the columns of its row in the index."""

    data: bytes
    frames: int
    width: int
    height: int
    timed: int
    crc: int


def encode_clip(record: Record, pattern: str, short_side: int, quality: int) -> EncodedClip:
    """Decode the frames of a record, downscale them if they are larger, and encode them as JPEG.

    Only the frames of its time range are encoded. The other arguments are those of `pack`.

    Raises:
        VideoError: if a frame cannot be decoded, or the frames differ in size.
    """
    video = open_video(record.path, pattern=pattern, frames=record.frames)
    selected = range(len(video))
    if record.start is not None or record.end is not None:
        selected = video.between(record.start, record.end)
    if not selected:
        raise VideoError(record.path, "has no frame")
    images, (height, width) = _encode_frames(video, selected, short_side, quality)
    times = video.times
    if times is not None and len(times) != len(video):
        raise VideoError(video.path, f"{len(times)} frames decode; the list has {len(video)}")
    frames = np.zeros(len(images), FRAME)
    frames["end"] = np.cumsum([len(image) for image in images])
    frames["time"] = np.nan if times is None else times[selected.start : selected.stop]
    frames["crc"] = [zlib.crc32(image) for image in images]
    header = frames.tobytes()
    data = b"".join((header, *images))
    return EncodedClip(data, len(images), width, height, int(times is not None), zlib.crc32(header))


def _encode_frames(
    video: Video, selected: range, short_side: int, quality: int
) -> tuple[list[bytes], tuple[int, int]]:
    """The frames as JPEG, and their height and width; at most `CHUNK_BYTES` are decoded at once."""
    from torchvision.io import encode_jpeg  # its import takes two seconds

    images: list[bytes] = []
    one = video.read(selected[:1])
    step = max(1, CHUNK_BYTES // one.nbytes)
    for first in range(0, len(selected), step):
        x = video.read(selected[first : first + step])
        if x.shape[1:] != one.shape[1:]:
            raise VideoError(video.path, f"frames {first} and 0 differ in size")
        x = x.permute(0, 3, 1, 2)  # (N, C, H, W)
        if min(x.shape[-2:]) > short_side:
            x = resize(x, short_side)
        images += [encode_jpeg(image.contiguous(), quality).numpy().tobytes() for image in x]
    return images, tuple(x.shape[-2:])


class StoredVideo(Video):
    """A video of a store, with the interface of the videos that `open_video` returns.

    It is a row of the index; `sha256` and `shard_bytes` are those of the shard that holds the clip.

    Raises:
        VideoError: if the row names bytes that its shard does not have, or is impossible.
    """

    def __init__(self, path: str, clip: Clip, files: Files, sha256: str, shard_bytes: int) -> None:
        self.path, self.clip, self._files, self._sha256 = path, clip, files, sha256
        header = FRAME.itemsize * clip.frames
        if clip.offset < 0 or not 0 < header <= clip.bytes <= shard_bytes - clip.offset:
            raise self._damaged(f"its row of the index is impossible: {clip[3:]}")
        if refusal := frame_refusal(clip.width, clip.height):
            raise self._damaged(f"its frames have {refusal}")

    def __len__(self) -> int:
        return self.clip.frames

    @property
    def times(self) -> np.ndarray | None:
        """Time of each frame in seconds of the original video; None if frames have no times."""
        return self._header["time"] if self.clip.timed else None

    def _images(self, indices: Sequence[int]) -> dict[int, np.ndarray]:
        return {index: self._decode(index, data) for index, data in self._frames(indices)}

    def verify(self) -> None:
        """Verify the checksums of the header and of all frames.

        Raises:
            VideoError: for the first wrong checksum.
        """
        for _ in self._frames(range(len(self))):
            pass

    @cached_property
    def _header(self) -> np.ndarray:
        length, start = FRAME.itemsize * len(self), self.clip.offset
        ((_, data),) = self._read([(None, Part(start, start + length, self.clip.crc))])
        header = np.frombuffer(data, FRAME)
        ends = header["end"].astype(np.int64)
        if (np.diff(ends, prepend=0) <= 0).any() or length + ends[-1] != self.clip.bytes:
            raise self._damaged("its header is wrong")
        return header

    def _frames(self, indices: Iterable[int]) -> Iterator[tuple[int, Bytes]]:
        """Index and JPEG of each frame, compared with its checksum; `indices` are ascending."""
        first, crcs = self.clip.offset + FRAME.itemsize * len(self), self._header["crc"].tolist()
        ends = [0, *self._header["end"].tolist()]
        parts = [(i, Part(first + ends[i], first + ends[i + 1], crcs[i])) for i in indices]
        return self._read(parts)

    def _read(self, parts: Sequence[tuple[int | None, Part]]) -> Iterator[tuple[int | None, Bytes]]:
        """Bytes of parts of the shard, each given with its frame (None for the header)."""
        frame, name = None, shard_name(self.clip.shard)
        try:
            with self._files.reader(name, self._sha256, [part for _, part in parts]) as read:
                for frame, part in parts:
                    yield frame, read(part)
        except FileNotFoundError:
            raise self._damaged("the shard is missing") from None
        except OSError as error:
            raise self._damaged(str(error), frame) from None

    def _decode(self, index: int, data: Bytes) -> np.ndarray:
        """Pixels of a frame, uint8 (H, W, 3)."""
        from PIL import Image

        size = self.clip.width, self.clip.height
        try:
            with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
                if image.size == size and image.mode == "RGB":
                    return np.asarray(image)
                cause = f"a JPEG of {image.size} pixels, {image.mode}; expected {size}, RGB"
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            cause = f"not a JPEG ({error})"
        raise self._damaged(cause, index)

    def _damaged(self, cause: str, frame: int | None = None) -> VideoError:
        where = f"{self._files.name}, {shard_name(self.clip.shard)}"
        return VideoError(self.path, f"{cause} ({where})", frame)
