"""The table of decoders, and functions that open a video with one of them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from torch import Tensor

from ffn.data.decoding.decord_decoder import DecordDecoder
from ffn.data.decoding.folder import PATTERN, FrameFolder
from ffn.data.decoding.pyav_decoder import PyAVDecoder
from ffn.data.decoding.video import Video

DECODERS = {
    "auto": PyAVDecoder,  # correct for every file that FFmpeg decodes, and the fastest measured
    "pyav": PyAVDecoder,
    "decord": DecordDecoder,
}


def open_video(
    path: str | os.PathLike[str],
    *,
    decoder: str = "auto",
    pattern: str = PATTERN,
    frames: int | None = None,
) -> Video:
    """Open a video file or a folder of frames.

    Args:
        path: Video file, or folder with one image per frame.
        decoder: For files, a key of `DECODERS`. `auto` takes every file that FFmpeg decodes; the
            others refuse files of which they would return wrong frames.
        pattern: For folders, name of a frame.
        frames: Number of frames if it is known, e.g. from an index. It avoids listing a folder, and
            decoding a file that is not seekable to count its frames.

    Raises:
        VideoError: if the video cannot be opened.
        ValueError: if `decoder` is unknown.
    """
    check_decoder(decoder)
    path = os.fspath(path)
    if os.path.isdir(path):
        return FrameFolder(path, pattern, frames)
    return DECODERS[decoder](path, frames)


def check_decoder(decoder: str) -> None:
    """Raise ValueError for a name that is not in `DECODERS`."""
    if decoder not in DECODERS:
        raise ValueError(f"decoder {decoder!r} is unknown; expected one of {', '.join(DECODERS)}")


def decode(
    path: str | os.PathLike[str],
    indices: Sequence[int],
    *,
    decoder: str = "auto",
    pattern: str = PATTERN,
) -> Tensor:
    """Read frames of one video.

    Args:
        path: See `open_video`.
        indices: 0-based indices of frames, in any order; repeats are allowed.
        decoder: See `open_video`.
        pattern: See `open_video`.

    Returns:
        uint8 RGB of shape (N, H, W, 3).

    Raises:
        VideoError: if the video cannot be opened or a frame cannot be read.
    """
    return open_video(path, decoder=decoder, pattern=pattern).read(indices)


def count_frames(path: str | os.PathLike[str], *, pattern: str = PATTERN) -> int:
    """Count the frames of a video file or a folder of frames.

    Raises:
        VideoError: if the video cannot be opened.
    """
    return len(open_video(path, pattern=pattern))
