"""Encode one video as a clip, JPEG or raw frames behind a header, and decode its frames.

The header of a clip of N frames holds three arrays, one after another: N ends of frames (uint64,
counted from the end of the header), N times in seconds (float64; absent for folders of images),
and N CRC-32 of frames (uint32).
"""

from __future__ import annotations

import io
import warnings
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

CHUNK_BYTES = 1 << 29  # of decoded frames in memory at a time


@dataclass(frozen=True)
class Header:
    """The arrays at the start of a clip.

    Attributes:
        ends: (N,) uint64, end of each frame in bytes after the header.
        times: (N,) float64, time of each frame in seconds; None for a folder of images.
        crcs: (N,) uint32, `zlib.crc32` of each frame's bytes.
    """

    ends: np.ndarray
    times: np.ndarray | None
    crcs: np.ndarray

    def to_bytes(self) -> bytes:
        """The arrays one after another."""
        times = b"" if self.times is None else self.times.astype("<f8").tobytes()
        return self.ends.astype("<u8").tobytes() + times + self.crcs.astype("<u4").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, frames: int, timed: bool) -> Header:
        """Parse the output of `to_bytes`."""
        after_ends, after_times = 8 * frames, (16 if timed else 8) * frames
        return cls(
            ends=np.frombuffer(data[:after_ends], "<u8"),
            times=np.frombuffer(data[after_ends:after_times], "<f8") if timed else None,
            crcs=np.frombuffer(data[after_times:], "<u4"),
        )

    @staticmethod
    def length(frames: int, timed: bool) -> int:
        """Length of the header in bytes."""
        return (20 if timed else 12) * frames


@dataclass(frozen=True)
class EncodedClip:
    """An encoded clip.

    Attributes:
        data: Header and frames.
        crc: `zlib.crc32` of the header.
        frames: Number of frames.
        width: Width of the stored frames in pixels.
        height: Height of the stored frames in pixels.
        fps: Mean frames per second; 0 if unknown.
        timed: Whether the header holds times.
    """

    data: bytes
    crc: int
    frames: int
    width: int
    height: int
    fps: float
    timed: bool


def encode_clip(
    record: Record, *, pattern: str, format: str, short_side: int, quality: int | None
) -> EncodedClip:
    """Decode the frames of a record, downscale them if they are larger, and encode them.

    Args:
        record: Video file or folder of frames; only the frames of its time range are encoded.
        pattern: File name of a frame in a folder of frames.
        format: `jpeg` or `raw`.
        short_side: Upper bound on the shorter side of the stored frames, in pixels.
        quality: JPEG quality.

    Raises:
        VideoError: if a frame cannot be decoded, or the frames differ in size.
    """
    video = open_video(record.path, pattern=pattern, frames=record.frames)
    selected = range(len(video))
    if record.start is not None or record.end is not None:
        selected = video.between(record.start, record.end)
    if not selected:
        raise VideoError(record.path, "has no frame")
    images: list[bytes] = []
    shape, first, step = None, 0, 1
    while first < len(selected):
        frames = video.read(selected[first : first + step])
        if shape not in (None, frames.shape[1:3]):
            size = f"{frames.shape[2]} x {frames.shape[1]}"
            cause = f"is {size} pixels, others {shape[1]} x {shape[0]}"
            raise VideoError(record.path, cause, selected[first])
        shape, first = frames.shape[1:3], first + len(frames)
        step = max(1, min(len(selected), CHUNK_BYTES // frames[0].nbytes))
        small = downscale(frames, short_side)
        images += [_encode(image, format, quality) for image in small]

    times = _times(video)
    if times is not None:
        times = times[selected.start : selected.stop]
    header = Header(
        ends=np.cumsum([len(image) for image in images], dtype=np.uint64),
        times=times,
        crcs=np.array([zlib.crc32(image) for image in images], dtype=np.uint32),
    ).to_bytes()
    return EncodedClip(
        data=b"".join((header, *images)),
        crc=zlib.crc32(header),
        frames=len(images),
        width=small.shape[2],
        height=small.shape[1],
        fps=mean_fps(times),
        timed=times is not None,
    )


def _times(video: Video) -> np.ndarray | None:
    """Time of each frame in seconds; None for a folder and for files without timestamps."""
    if not isinstance(video, PyAVDecoder):
        return None
    times = video.timeline.seconds
    if len(times) != len(video):
        cause = f"{len(times)} frames decode; the list has {len(video)}"
        raise VideoError(video.path, cause)
    return times if len(times) == 1 or times[-1] > 0 else None


def downscale(frames: Tensor, short_side: int) -> Tensor:
    """Resize frames uint8 (N, H, W, 3) to a shorter side of at most `short_side`.

    Uses torchvision's antialiased bilinear resize of uint8; the longer side is rounded down.
    Smaller frames are returned unchanged.
    """
    if min(frames.shape[1:3]) <= short_side:
        return frames
    x = F.resize(frames.permute(0, 3, 1, 2), [short_side], antialias=True)  # (N, C, H, W)
    return x.permute(0, 2, 3, 1)  # (N, H, W, C)


def decode_frame(data: bytearray, format: str, image: Tensor) -> None:
    """Decode one frame.

    simplejpeg decodes JPEG if it is installed (the extra `store`), else torchvision. Both use
    libjpeg-turbo and return the same pixels.

    Args:
        data: The stored bytes of the frame.
        format: `jpeg` or `raw`.
        image: Output, uint8 RGB of shape (H, W, 3).

    Raises:
        ValueError: if the bytes are not a frame of this size.
    """
    buffer = torch.frombuffer(data, dtype=torch.uint8)
    if format == "raw":
        if len(data) != image.numel():
            raise ValueError(f"{len(data)} bytes are not a raw frame of shape {tuple(image.shape)}")
        image.view(-1).copy_(buffer)
        return
    simplejpeg = _simplejpeg()
    try:
        if simplejpeg is not None:
            shape = simplejpeg.decode_jpeg(data, "RGB", buffer=image.numpy()).shape
        else:
            shape = _jpeg_shape(data)  # before the memory of all its pixels is taken
            if shape == tuple(image.shape):
                image.copy_(decode_jpeg(buffer, mode=ImageReadMode.RGB).permute(1, 2, 0))
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"not a JPEG of shape {tuple(image.shape)} ({_first_line(error)})"
        ) from None
    if tuple(shape) != tuple(image.shape):
        raise ValueError(f"JPEG of shape {tuple(shape)}; expected {tuple(image.shape)}")


def _jpeg_shape(data: bytearray) -> tuple[int, int, int]:
    """(H, W, 3) by the header of a JPEG.

    Raises:
        ValueError: if it has none.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
                return image.height, image.width, 3
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(str(error)) from None


def mean_fps(times: Sequence[float] | np.ndarray | None) -> float:
    """Mean frames per second of frames at `times` (seconds); 0 if unknown."""
    if times is None or len(times) < 2 or times[-1] <= times[0]:
        return 0.0
    return float((len(times) - 1) / (times[-1] - times[0]))


def _encode(image: Tensor, format: str, quality: int | None) -> bytes:
    """Encode a frame uint8 (H, W, 3)."""
    if format == "jpeg":
        image = encode_jpeg(image.permute(2, 0, 1).contiguous(), quality)
    return image.contiguous().numpy().tobytes()


@cache
def _simplejpeg() -> ModuleType | None:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
