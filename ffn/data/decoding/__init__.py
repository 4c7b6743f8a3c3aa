"""Frames by index, from video files through several readers, and from folders of images.

`open_video(path)` returns a video that knows its length and reads any frames in one pass. Frames
are numbered in the order in which they are shown. Whatever cannot be read raises `VideoError` with
the path, the frame and the cause; a frame is never replaced by another one.
"""

from __future__ import annotations

from ffn.data.decoding.errors import VideoError
from ffn.data.decoding.folder import PATTERN, FrameFolder
from ffn.data.decoding.opening import (
    READERS,
    Facts,
    Video,
    count_frames,
    decode,
    open_video,
    probe,
)
from ffn.data.decoding.pyav_reader import PyAVFile

__all__ = [
    "PATTERN",
    "READERS",
    "Facts",
    "FrameFolder",
    "PyAVFile",
    "Video",
    "VideoError",
    "count_frames",
    "decode",
    "open_video",
    "probe",
]
