"""Read frames by index from video files and from folders of images.

`open_video(path)` returns a `Video` with a length and a `read(indices)` method. Frames are numbered
in presentation order. A frame that cannot be read raises `VideoError` with path, frame and cause.
"""

from __future__ import annotations

from ffn.data.decoding.decoders import DECODERS, count_frames, decode, open_video
from ffn.data.decoding.folder import PATTERN, FrameFolder, check_pattern
from ffn.data.decoding.metadata import VideoMetadata, probe
from ffn.data.decoding.pyav_decoder import PyAVDecoder
from ffn.data.decoding.video import Video, VideoError

__all__ = [
    "DECODERS",
    "PATTERN",
    "FrameFolder",
    "PyAVDecoder",
    "Video",
    "VideoError",
    "VideoMetadata",
    "check_pattern",
    "count_frames",
    "decode",
    "open_video",
    "probe",
]
