"""Video files through decord, where its frames are known to be the right ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ffn.data.decoding.errors import VideoError, check_range, stack
from ffn.data.decoding.timeline import SoughtFile, Timeline

if TYPE_CHECKING:
    import decord


class DecordFile(SoughtFile):
    """A video file, decoded by decord on one thread; see `PyAVFile` for what the members do.

    Without a word, decord gives other frames than those asked for in open groups of pictures, in
    MPEG-1/2, in fragmented mp4 and in AVI, and other colours in 10-bit video. So it takes what it
    was found to read rightly, H.264 of 8 bits in closed groups in mp4, mov or mkv, and refuses
    the rest.

    Args:
        path: The file.
        frames: Ignored: the packets of the files that are taken count their frames.

    Raises:
        VideoError: if the file cannot be opened, or decord would read it wrongly.
        ModuleNotFoundError: if decord is not installed.
    """

    def __init__(self, path: str, frames: int | None = None) -> None:
        super().__init__(path)
        reason = _why_unsafe(self.timeline)
        if reason:
            raise VideoError(
                path, f"decord may give wrong frames here ({reason}); use decoder auto"
            )
        self._reader = _open_reader(path)
        self.check_count("decord", len(self._reader))
        self._next = 0

    def read(self, indices: Iterable[int]) -> Tensor:
        """As `PyAVFile.read`."""
        import decord

        wanted = list(indices)
        check_range(self.path, wanted, len(self))
        images = {}
        for index in sorted(set(wanted)):
            try:
                self._go_to(index)
                images[index] = _rgb(self._reader.next().asnumpy())
            except (decord.DECORDError, StopIteration) as error:
                # decord decodes ahead, so the frame is a lower bound.
                self._reader, self._next = _open_reader(self.path), 0
                cause = f"corrupt or cut off, there or later ({_short(error)})"
                raise VideoError(self.path, cause, index) from None
            self._next = index + 1
        return stack(self.path, wanted, images)

    def _go_to(self, index: int) -> None:
        """Move to a frame, over the key frame before it if that is not passed yet."""
        times, keys = self.timeline.times, self.timeline.keys
        key = keys[np.searchsorted(keys, times[index], side="right") - 1]
        if index < self._next or self._next == 0 or key > times[self._next - 1]:
            self._reader.seek_accurate(index)
        elif index > self._next:
            self._reader.skip_frames(index - self._next)


def _why_unsafe(timeline: Timeline) -> str:
    if timeline.unsought:
        return timeline.unsought
    if timeline.codec != "h264" or timeline.bits != 8:
        return f"{timeline.codec} of {timeline.bits} bits"
    if timeline.leading:
        return "open groups of pictures"
    if "mov" in timeline.container and timeline.header_frames != len(timeline):
        return "fragments, or frames that are not shown"
    return ""


def _open_reader(path: str) -> decord.VideoReader:
    """Open a file with decord, or say why that does not work."""
    import decord  # here, since only decoding needs it

    decord.logging.set_level(decord.logging.QUIET)
    try:
        # Above its tolerance decord raises; by default it would repeat frames that do not decode.
        return decord.VideoReader(path, num_threads=1, fault_tol=1e-9)
    except (decord.DECORDError, RuntimeError, AssertionError) as error:
        raise VideoError(path, f"decord cannot open it ({_short(error)})") from None


def _short(error: Exception) -> str:
    """What decord says, without times, places in its source and stack trace."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rsplit("] ", 1)[-1].rsplit(") ", 1)[-1]


def _rgb(frame: np.ndarray) -> np.ndarray:
    """Pixels (H, W, 3) of a frame as decord returns it.

    decord takes the bytes of a row divided by its width for the number of channels. Where the
    padded row is a multiple of the width (96 pixels: 384 bytes) that is 4 or more, and the padding
    comes along; each row still starts with its W pixels.
    """
    height, width, _ = frame.shape
    return frame.reshape(height, -1)[:, : 3 * width].reshape(height, width, 3)
