"""One video as the bytes of a clip: frames of bounded size, JPEG or raw, behind a head of tables.

The head of a clip of N frames holds, one array after another: N ends of frames (uint64, counted
from the end of the head), N times in seconds (float64; not for folders of images), N CRC-32 of
frames (uint32).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import numpy as np
import torch
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg, encode_jpeg
from torchvision.transforms.v2 import functional as F

from ffn.data.annotations import Record
from ffn.data.decoding import PyAVDecoder, Video, VideoError, open_video

CHUNK_BYTES = 1 << 29  # of decoded frames that are held at a time


@dataclass(frozen=True)
class Head:
    """The tables of a clip.

    Attributes:
        ends: (N,) uint64, end of each frame in bytes after the head.
        times: (N,) float64, when each frame is shown, in seconds; None for a folder of images.
        crcs: (N,) uint32, `zlib.crc32` of each frame's bytes.
    """

    ends: np.ndarray
    times: np.ndarray | None
    crcs: np.ndarray

    def to_bytes(self) -> bytes:
        """The tables one after another."""
        times = b"" if self.times is None else self.times.astype("<f8").tobytes()
        return self.ends.astype("<u8").tobytes() + times + self.crcs.astype("<u4").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, frames: int, timed: bool) -> Head:
        """Read what `to_bytes` returned."""
        after_ends, after_times = 8 * frames, (16 if timed else 8) * frames
        return cls(
            ends=np.frombuffer(data[:after_ends], "<u8"),
            times=np.frombuffer(data[after_ends:after_times], "<f8") if timed else None,
            crcs=np.frombuffer(data[after_times:], "<u4"),
        )

    @staticmethod
    def length(frames: int, timed: bool) -> int:
        """Bytes of the head of a clip."""
        return (20 if timed else 12) * frames


@dataclass(frozen=True)
class EncodedClip:
    """A clip, ready to be written.

    Attributes:
        data: Head and frames.
        crc: `zlib.crc32` of the head.
        frames: Number of frames.
        width: In pixels, of the frames as stored.
        height: Likewise.
        fps: Mean frames per second; 0 if unknown.
        timed: Whether the head holds times.
    """

    data: bytes
    crc: int
    frames: int
    width: int
    height: int
    fps: float
    timed: bool


def encode_clip(
    record: Record, *, pattern: str, form: str, short_side: int, quality: int | None
) -> EncodedClip:
    """Decode the frames of a record, make them smaller if they are larger, and encode them.

    Args:
        record: Video file or folder; of a time range, only its frames are taken.
        pattern: Name of a frame inside a folder.
        form: `jpeg` or `raw`.
        short_side: Of the stored frames at most, in pixels; smaller videos stay as they are.
        quality: Of the JPEGs.

    Raises:
        VideoError: if a frame cannot be read, or the frames differ in size.
    """
    video = open_video(record.path, pattern=pattern, frames=record.frames)
    usable = range(len(video))
    if record.start is not None or record.end is not None:
        usable = video.between(record.start, record.end)
    if not usable:
        raise VideoError(record.path, "has no frame")
    images: list[bytes] = []
    shape, first, step = None, 0, 1
    while first < len(usable):
        frames = video.read(usable[first : first + step])
        if shape not in (None, frames.shape[1:3]):
            size = f"{frames.shape[2]} x {frames.shape[1]}"
            cause = f"is {size} pixels, others {shape[1]} x {shape[0]}"
            raise VideoError(record.path, cause, usable[first])
        shape, first = frames.shape[1:3], first + len(frames)
        step = max(1, min(len(usable), CHUNK_BYTES // frames[0].nbytes))
        small = shrink(frames, short_side)
        images += [_encode(image, form, quality) for image in small]

    times = _times(video)
    if times is not None:
        times = times[usable.start : usable.stop]
    head = Head(
        ends=np.cumsum([len(image) for image in images], dtype=np.uint64),
        times=times,
        crcs=np.array([zlib.crc32(image) for image in images], dtype=np.uint32),
    ).to_bytes()
    return EncodedClip(
        data=b"".join((head, *images)),
        crc=zlib.crc32(head),
        frames=len(images),
        width=small.shape[2],
        height=small.shape[1],
        fps=mean_fps(times),
        timed=times is not None,
    )


def _times(video: Video) -> np.ndarray | None:
    """When each frame is shown, in seconds; None for a folder, or a file that does not say."""
    if not isinstance(video, PyAVDecoder):
        return None
    times = video.timeline.seconds
    if len(times) != len(video):
        cause = f"{len(times)} frames decode; the list says {len(video)}"
        raise VideoError(video.path, cause)
    return times if len(times) == 1 or times[-1] > 0 else None


def shrink(frames: Tensor, short_side: int) -> Tensor:
    """Frames uint8 (N, H, W, 3) whose shorter side is at most `short_side`.

    torchvision's antialiased bilinear resize of uint8; the longer side is rounded down. Frames that
    are small enough come back as they are.
    """
    if min(frames.shape[1:3]) <= short_side:
        return frames
    x = F.resize(frames.permute(0, 3, 1, 2), [short_side], antialias=True)  # (N, C, H, W)
    return x.permute(0, 2, 3, 1)  # (N, H, W, C)


def decode_frame(data: bytearray, form: str, image: Tensor) -> None:
    """Decode one frame.

    JPEG is decoded by simplejpeg if it is installed (the extra `store`), else by torchvision: both
    are libjpeg-turbo and give the same pixels.

    Args:
        data: The frame as it is stored.
        form: `jpeg` or `raw`.
        image: Where it goes, uint8 RGB of shape (H, W, 3).

    Raises:
        ValueError: if the bytes are no frame of this size.
    """
    buffer = torch.frombuffer(data, dtype=torch.uint8)
    if form == "raw":
        if len(data) != image.numel():
            raise ValueError(f"{len(data)} bytes are no raw frame of shape {tuple(image.shape)}")
        image.view(-1).copy_(buffer)
        return
    simplejpeg = _simplejpeg()
    try:
        if simplejpeg is not None:
            shape = simplejpeg.decode_jpeg(data, "RGB", buffer=image.numpy()).shape
        else:
            decoded = decode_jpeg(buffer, mode=ImageReadMode.RGB).permute(1, 2, 0)  # (H, W, C)
            shape = decoded.shape
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"no JPEG of shape {tuple(image.shape)} ({_line(error)})") from None
    if tuple(shape) != tuple(image.shape):
        raise ValueError(f"JPEG of shape {tuple(shape)}, not {tuple(image.shape)}")
    if simplejpeg is None:
        image.copy_(decoded)


def mean_fps(times: Sequence[float] | np.ndarray | None) -> float:
    """Mean frames per second of frames shown at `times`; 0 if that is unknown."""
    if times is None or len(times) < 2 or times[-1] <= times[0]:
        return 0.0
    return float((len(times) - 1) / (times[-1] - times[0]))


def _encode(image: Tensor, form: str, quality: int | None) -> bytes:
    """Bytes of a frame uint8 (H, W, 3)."""
    if form == "jpeg":
        image = encode_jpeg(image.permute(2, 0, 1).contiguous(), quality)
    return image.contiguous().numpy().tobytes()


@cache
def _simplejpeg() -> ModuleType | None:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
