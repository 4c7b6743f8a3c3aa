"""Video files through PyAV: frames found by their times, sought where the packets allow it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING
from weakref import finalize

import numpy as np
from torch import Tensor

from ffn.data.decoding.errors import VideoError, check_range, stack
from ffn.data.decoding.timeline import Timeline, decoded, open_container, read_timeline

if TYPE_CHECKING:
    import av


class PyAVFile:
    """A video file, decoded by FFmpeg on one thread, its frames numbered as they are shown.

    Decoding starts at the last key frame that is shown no later than a wanted frame, goes forward
    only, and leaves out the H.264 frames that nobody wants and no other frame refers to. A file
    whose packets do not tell times and key frames for certain is read from its start. Rotation
    flags are applied; pixels are taken as square.

    Args:
        path: The file.
        frames: Number of frames if it is known, as from an index. It saves decoding a file that
            cannot be sought only to count it; elsewhere the packets of the file count.

    Raises:
        VideoError: if there is no such file, it is no video, holds no video stream, or is cut off.
    """

    def __init__(self, path: str, frames: int | None = None) -> None:
        self.path = path
        self._container = open_container(path)
        # A container and its streams refer to each other: left to the garbage collector, decoders
        # would pile up.
        finalize(self, self._container.close)
        self._timeline = read_timeline(path, self._container, count=frames is None)
        self._frames = len(self._timeline) if self._timeline.times is not None else frames

    def __len__(self) -> int:
        return self._frames

    @property
    def timeline(self) -> Timeline:
        """What the packets say, or, if they say too little, the decoded frames."""
        if self._timeline.times is None:
            self._timeline = read_timeline(self.path, self._container)
        return self._timeline

    def between(self, start: float | None, end: float | None) -> range:
        """Indices of the frames shown at a time in [start, end), in seconds after the first.

        Raises:
            VideoError: if there is none.
        """
        return self.timeline.between(start, end)

    def read(self, indices: Iterable[int]) -> Tensor:
        """Frames at `indices`, in that order; repeated indices are decoded once.

        Returns:
            uint8 RGB of shape (N, H, W, 3).

        Raises:
            VideoError: if an index is outside the video, or a frame cannot be decoded.
        """
        wanted = list(indices)
        check_range(self.path, wanted, len(self))
        return stack(self.path, wanted, self._images(sorted(set(wanted))))

    def _images(self, wanted: Sequence[int]) -> dict[int, np.ndarray]:
        """Upright pixels by index, for ascending indices."""
        import av

        if self._timeline.unsought:
            return self._passed(wanted)
        index_at = {int(self._timeline.times[i]): i for i in wanted}
        try:
            images = self._sought(index_at)
        except (av.error.FFmpegError, ValueError):
            images = {}
        # What seeking does not give for certain, the whole way from the first frame does, or says
        # why not: behind damage, or if a frame was marked as a key and needs others.
        return images if len(images) == len(wanted) else self._passed(wanted)

    def _sought(self, index_at: Mapping[int, int]) -> dict[int, np.ndarray]:
        """Images by index, for ascending times; without those that do not come."""
        keys, images = self._timeline.keys, {}
        frames, reached = iter(()), None
        for time, index in index_at.items():
            key = int(keys[np.searchsorted(keys, time, side="right") - 1])
            if reached is None or key > reached:
                frames, reached = self._frames_from(key, index_at), key
            while index not in images and reached <= time:
                frame = next(frames, None)
                if frame is None or frame.is_corrupt:
                    return images
                reached = frame.pts
                if frame.pts in index_at:
                    images[index_at[frame.pts]] = upright(frame)
        return images

    def _frames_from(self, key: int, wanted: Mapping[int, int]) -> Iterator[av.VideoFrame]:
        """Frames shown from a key frame on, and perhaps not those that nobody wants."""
        stream = self._container.streams.best("video")
        context = stream.codec_context
        # A frame that H.264 marks as no reference is none for any other; HEVC's mark says less.
        leaves_out = self._timeline.codec == "h264"
        skipped = context.skip_frame = "DEFAULT"
        self._container.seek(key, stream=stream)
        with closing(self._container.demux(stream)) as packets:  # left open it would keep memory
            for packet in packets:
                unwanted = leaves_out and packet.size and packet.pts not in wanted
                if skipped != (skip := "NONREF" if unwanted else "DEFAULT"):
                    skipped = context.skip_frame = skip
                for frame in context.decode(packet):
                    if frame.pts is not None and frame.pts >= key:
                        yield frame

    def _passed(self, wanted: Sequence[int]) -> dict[int, np.ndarray]:
        """Images by index, on the way from the first frame to the last wanted."""
        timeline, chosen, images = self._timeline, set(wanted), {}
        index_at = {int(timeline.times[i]): i for i in wanted} if not timeline.unsought else {}
        with open_container(self.path) as container:
            for place, frame in enumerate(decoded(self.path, container)):
                index = place if timeline.unsought else index_at.get(frame.pts)
                if index in chosen:
                    images[index] = upright(frame)
                if len(images) == len(chosen):
                    return images
        missing = next(i for i in wanted if i not in images)
        raise VideoError(self.path, f"does not decode, though {len(self)} are counted", missing)


def upright(frame: av.VideoFrame) -> np.ndarray:
    """Pixels of a frame, uint8 RGB (H, W, 3), turned as its rotation flag says."""
    image = frame.to_ndarray(format="rgb24")
    return np.rot90(image, frame.rotation // 90) if frame.rotation else image
