"""Open a video file with FFmpeg (PyAV) and decode its frames in order, with strict error checks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from ffn.data.decoding.video import VideoError
from ffn.limits import FRAME_PIXELS

if TYPE_CHECKING:
    import av

# Formats of FFmpeg that are texts: it would draw them, or open the files that they name.
TEXTS = ("concat", "dash", "hls", "tty")


def open_container(path: str) -> av.container.InputContainer:
    """Open a file for decoding on one thread; FFmpeg reports damage as an error.

    Raises:
        VideoError: if the file does not exist, is not a video, or has no video stream.
    """
    if not os.path.exists(path):
        raise VideoError(path, "no such file or folder")
    if not os.path.isfile(path):
        raise VideoError(path, "not a regular file")
    if os.path.getsize(path) == 0:
        raise VideoError(path, "the file is empty (0 bytes)")
    import av  # not at import: only decoding needs it

    try:
        options = {"protocol_whitelist": "file"}  # no addresses inside of a file
        container = av.open(path, metadata_errors="ignore", options=options)
    except (av.error.FFmpegError, OSError, ValueError) as error:
        cause = f"not a video, or truncated before its index ({ffmpeg_message(error)})"
        raise VideoError(path, cause) from None
    reason = _why_unusable(container)
    if reason:
        container.close()
        raise VideoError(path, reason)
    stream = container.streams.best("video")
    stream.thread_type = "NONE"
    stream.codec_context.thread_count = 1
    stream.codec_context.options = {
        "err_detect": "explode",
        "max_pixels": str(FRAME_PIXELS.value),  # for frames that are larger than the header says
    }
    return container


def _why_unusable(container: av.container.InputContainer) -> str:
    """Why a file is not decoded; empty if it is."""
    if container.format.name in TEXTS:
        return f"not a video but a text ({container.format.long_name})"
    stream = container.streams.best("video")
    if stream is None:
        return "the file has no video stream"
    context = stream.codec_context
    if context is None:
        return "FFmpeg has no decoder for its video stream"
    refusal = FRAME_PIXELS.refusal(context.width * context.height)
    return refusal and f"{context.width} x {context.height} pixels: {refusal}"


def decode_frames(path: str, container: av.container.InputContainer) -> Iterator[av.VideoFrame]:
    """Decode all frames from the current position, in presentation order.

    Raises:
        VideoError: at the first frame that is damaged or cannot be decoded.
    """
    import av

    count, stream = 0, container.streams.best("video")
    try:
        with closing(container.decode(stream)) as frames:  # an open generator keeps its memory
            for frame in frames:
                if frame.is_corrupt:
                    raise VideoError(path, "damaged: a part of the frame does not decode", count)
                yield frame
                count += 1
    except (av.error.FFmpegError, OSError, ValueError) as error:
        cause = f"corrupt or truncated at frame {count} or later ({ffmpeg_message(error)})"
        raise VideoError(path, cause) from None


def to_rgb(frame: av.VideoFrame) -> np.ndarray:
    """Pixels of a frame, uint8 RGB (H, W, 3), with its rotation flag applied."""
    # One thread, as decoding: FFmpeg would start one per core for each frame and wait for them.
    image = frame.to_ndarray(format="rgb24", threads=1)
    return np.rot90(image, frame.rotation // 90) if frame.rotation else image


def ffmpeg_message(error: Exception) -> str:
    """FFmpeg's message, without error number and path."""
    return getattr(error, "strerror", None) or type(error).__name__
