"""Decode video files with decord; only files of which it returns the right frames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ffn.data.decoding.container import open_container
from ffn.data.decoding.timeline import Timeline, read_timeline
from ffn.data.decoding.video import VideoError, check_indices, stack_frames

if TYPE_CHECKING:
    import decord


class DecordDecoder:
    """A video file, decoded by decord on one thread; the interface is that of `PyAVDecoder`.

    decord returns wrong frames, without an error, for open groups of pictures, MPEG-1/2,
    fragmented mp4 and AVI, and wrong colors for 10-bit video. This class therefore accepts only
    8-bit H.264 with closed groups of pictures in mp4, mov or mkv. decord may return wrong frames of
    damaged files without an error.

    Args:
        path: The file.
        frames: Ignored: the packets of an accepted file give its number of frames.

    Raises:
        VideoError: if the file cannot be opened, or is not accepted.
        ModuleNotFoundError: if decord is not installed.
    """

    def __init__(self, path: str, frames: int | None = None) -> None:
        self.path = path
        with open_container(path) as container:
            self.timeline = read_timeline(path, container, count=False)
        reason = _unsupported(self.timeline)
        if reason:
            raise VideoError(path, f"decord may return wrong frames ({reason}); use decoder auto")
        self._reader = _open_reader(path)
        if len(self._reader) != len(self):
            cause = f"decord counts {len(self._reader)} frames, its packets {len(self)}"
            raise VideoError(path, f"{cause}; use decoder auto")
        self._next = 0

    def __len__(self) -> int:
        return len(self.timeline)

    def between(self, start: float | None, end: float | None) -> range:
        """See `PyAVDecoder.between`."""
        return self.timeline.between(start, end)

    def read(self, indices: Iterable[int]) -> Tensor:
        """See `PyAVDecoder.read`."""
        indices = list(indices)
        check_indices(self.path, indices, len(self))
        images = {}
        for index in sorted(set(indices)):
            try:
                self._seek(index)
                images[index] = _remove_padding(self._reader.next().asnumpy())
            except _errors() as error:
                # decord decodes ahead: the damaged frame may be a later one.
                self._reader, self._next = _open_reader(self.path), 0
                cause = f"corrupt or truncated at this frame or later ({_decord_message(error)})"
                raise VideoError(self.path, cause, index) from None
            self._next = index + 1
        return stack_frames(self.path, indices, images)

    def _seek(self, index: int) -> None:
        """Move to a frame; seek to its keyframe only if that is ahead, or the frame is behind."""
        times = self.timeline.times
        keyframe = self.timeline.preceding_keyframe(times[index])
        if index < self._next or self._next == 0 or keyframe > times[self._next - 1]:
            self._reader.seek_accurate(index)
        elif index > self._next:
            self._reader.skip_frames(index - self._next)


def _unsupported(timeline: Timeline) -> str:
    """Why decord may return wrong frames of a file, or ""."""
    if timeline.not_seekable:
        return timeline.not_seekable
    if timeline.codec != "h264" or timeline.bit_depth != 8:
        return f"{timeline.bit_depth}-bit {timeline.codec}"
    if timeline.open_gop:
        return "open groups of pictures"
    if "mov" in timeline.container and timeline.header_frames != len(timeline):
        return "fragmented file, or frames that are not shown"
    return ""


def _open_reader(path: str) -> decord.VideoReader:
    """Open a file with decord.

    Raises:
        VideoError: if decord cannot open it.
    """
    import decord

    decord.logging.set_level(decord.logging.QUIET)
    try:
        # decord raises above this tolerance; its default repeats frames that do not decode.
        return decord.VideoReader(path, num_threads=1, fault_tol=1e-9)
    except (*_errors(), AssertionError) as error:
        raise VideoError(path, f"decord cannot open it ({_decord_message(error)})") from None


def _errors() -> tuple[type[Exception], ...]:
    """What decord raises for a file that it cannot read; the classes have no common base."""
    import decord  # not at import: only decoding needs it

    return decord.DECORDError, decord.DECORDLimitReachedError, RuntimeError, StopIteration


def _decord_message(error: Exception) -> str:
    """decord's message, without time, source line and stack trace."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rsplit("] ", 1)[-1].rsplit(") ", 1)[-1]


def _remove_padding(frame: np.ndarray) -> np.ndarray:
    """Pixels (H, W, 3) of a frame as decord returns it.

    decord computes the number of channels as the bytes of a row divided by its width. If the padded
    row is a multiple of the width (96 pixels: 384 bytes), the result is 4 or more channels that
    include the padding. The first 3 W bytes of each row are its pixels.
    """
    height, width, _ = frame.shape
    return frame.reshape(height, -1)[:, : 3 * width].reshape(height, width, 3)
