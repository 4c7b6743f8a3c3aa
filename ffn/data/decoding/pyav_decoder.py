"""Decode video files with PyAV (FFmpeg): frames are identified by their presentation times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING
from weakref import finalize

import numpy as np

from ffn.data.decoding.container import (
    Timeline,
    decode_frames,
    open_container,
    read_timeline,
    to_rgb,
    video_stream,
)
from ffn.data.decoding.video import Video, VideoError

if TYPE_CHECKING:
    import av


class PyAVDecoder(Video):
    """A video file, decoded by FFmpeg on one thread; frames are numbered in presentation order.

    In a seekable file, decoding starts at the last keyframe at or before a requested frame, runs
    forward only, and skips H.264 frames that are neither requested nor referenced. Any other file
    is decoded from its first frame. Rotation flags are applied; pixels are taken as square.

    Args:
        path: The file.
        frames: Number of frames if it is known, e.g. from an index. It avoids decoding a file that
            is not seekable to count its frames; a seekable file is counted by its packets.

    Raises:
        VideoError: if the file does not exist, is not a video, has no video stream, or is
            truncated.
    """

    def __init__(self, path: str, frames: int | None = None) -> None:
        self.path = path
        self._container = open_container(path)
        self._stream = video_stream(self._container)
        # A container and its streams refer to each other. Without an explicit close, open decoders
        # accumulate until the garbage collector runs.
        finalize(self, self._container.close)
        self._timeline = read_timeline(path, self._container, count=frames is None)
        self._frames = len(self._timeline) if self._timeline.times is not None else frames

    def __len__(self) -> int:
        return self._frames

    @property
    def timeline(self) -> Timeline:
        """Times of all frames; a file that is not seekable is decoded to find them."""
        if self._timeline.times is None:
            self._timeline = read_timeline(self.path, self._container)
        return self._timeline

    @property
    def times(self) -> np.ndarray | None:
        """See `Video.times`; a file that is not seekable is decoded to find them."""
        times = self.timeline.seconds
        return times if len(times) == 1 or times[-1] > 0 else None

    def _images(self, indices: Sequence[int]) -> dict[int, np.ndarray]:
        import av

        if self._timeline.not_seekable or self._timeline.in_doubt:
            return dict(self.in_order(indices))
        index_of = {int(self._timeline.times[i]): i for i in indices}
        try:
            images = self._read_by_seeking(index_of)
        except (av.error.FFmpegError, ValueError):
            images = {}
        # Seeking misses frames after damage, or if a packet marked as a keyframe depends on others.
        # Decoding from the first frame returns such frames, or raises the error.
        return images if len(images) == len(indices) else dict(self.in_order(indices))

    def _read_by_seeking(self, index_of: Mapping[int, int]) -> dict[int, np.ndarray]:
        """Pixels by index, for ascending times; stops at the first frame that is missing."""
        images: dict[int, np.ndarray] = {}
        frames, reached = iter(()), None
        for time, index in index_of.items():
            keyframe = self._timeline.preceding_keyframe(time)
            if reached is None or keyframe > reached:
                frames, reached = self._decode_from_keyframe(keyframe, index_of), keyframe
            while index not in images and reached <= time:
                frame = next(frames, None)
                if frame is None or frame.is_corrupt:
                    return images
                reached = frame.pts
                if frame.pts in index_of:
                    images[index_of[frame.pts]] = to_rgb(frame)
        return images

    def _decode_from_keyframe(
        self, keyframe: int, requested: Mapping[int, int]
    ) -> Iterator[av.VideoFrame]:
        """Frames shown from a keyframe on; unreferenced H.264 frames only if they are requested.

        There is none if the container marks a keyframe where the decoder finds none.
        """
        stream, started = self._stream, False
        context = stream.codec_context
        # No frame depends on an H.264 frame marked as non-reference. HEVC's mark is weaker.
        can_skip = self._timeline.codec == "h264"
        mode = context.skip_frame = "DEFAULT"
        self._container.seek(keyframe, stream=stream)
        with closing(self._container.demux(stream)) as packets:  # an open one keeps its memory
            for packet in packets:
                skip = can_skip and packet.size and packet.pts not in requested
                if mode != (new := "NONREF" if skip else "DEFAULT"):
                    mode = context.skip_frame = new
                for frame in context.decode(packet):
                    if frame.pts is not None and frame.pts >= keyframe:
                        started = started or (frame.key_frame and frame.pts == keyframe)
                        if not started:
                            return
                        yield frame

    def in_order(self, indices: Iterable[int]) -> Iterator[tuple[int, np.ndarray]]:
        """See `Video.in_order`; decodes from the first frame on."""
        times = None if self._timeline.not_seekable else self._timeline.times.tolist()
        wanted = iter(indices)
        index = next(wanted, None)
        with open_container(self.path) as container:
            frames = enumerate(decode_frames(self.path, container))
            while index is not None and (found := next(frames, None)):
                position, frame = found
                if times and [frame.pts] != times[position : position + 1]:
                    self._check_complete(position)
                    times = None  # another order than that of the times
                if position == index:
                    yield index, to_rgb(frame)
                    index = next(wanted, None)
        if index is not None:
            raise VideoError(self.path, f"cannot be decoded; {len(self)} frames expected", index)

    def _check_complete(self, position: int) -> None:
        """Raise VideoError at a position if the file does not give a frame for each packet."""
        with open_container(self.path) as container:
            shown = [frame.pts for frame in decode_frames(self.path, container)]
        if len(shown) != len(self) or {*shown} != {*self._timeline.times.tolist()}:
            cause = f"{len(shown)} frames decode from {len(self)} packets, or with other times"
            raise VideoError(self.path, cause, position)
