"""Read frames by index from video files and from folders of images.

`open_video(path)` returns a `Video` with a length and a `read(indices)` method. Frames are numbered
in presentation order. A frame that cannot be read raises `VideoError` with path, frame and cause.
"""

from __future__ import annotations

import os

from ffn.data.decoding.decord_decoder import DecordDecoder
from ffn.data.decoding.folder import FrameFolder
from ffn.data.decoding.metadata import VideoMetadata, probe
from ffn.data.decoding.names import PATTERN, check_pattern
from ffn.data.decoding.pyav_decoder import PyAVDecoder
from ffn.data.decoding.video import Video, VideoError

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
        decoder: For files, a key of `DECODERS`. `decord` refuses files of which it would return
            wrong frames.
        pattern: For folders, name of a frame.
        frames: Number of frames if it is known, e.g. from an index. It avoids listing a folder, and
            decoding a file that is not seekable to count its frames.

    Raises:
        VideoError: if the video cannot be opened.
        ValueError: if `decoder` is unknown.
    """
    if decoder not in DECODERS:
        raise ValueError(f"decoder {decoder!r} is unknown; expected one of {', '.join(DECODERS)}")
    path = os.fspath(path)
    if os.path.isdir(path):
        return FrameFolder(path, pattern, frames)
    return DECODERS[decoder](path, frames)
