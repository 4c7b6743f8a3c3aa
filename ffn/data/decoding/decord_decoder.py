"""Decode video files with decord; only files of which it returns the right frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ffn.data.decoding.pyav_decoder import PyAVDecoder
from ffn.data.decoding.video import VideoError

if TYPE_CHECKING:
    import decord


class DecordDecoder(PyAVDecoder):
    """A video file whose frames decord decodes, on one thread; PyAV reads its times.

    decord returns wrong frames, without an error, for open groups of pictures, MPEG-1/2,
    fragmented mp4 and AVI, and wrong colors for 10-bit video. This class therefore accepts only
    8-bit H.264 with closed groups of pictures in mp4, mov or mkv. decord may return wrong frames of
    damaged files without an error.

    Args:
        path: The file.
        frames: Ignored: the packets of an accepted file give its number of frames.

    Raises:
        VideoError: if the file cannot be opened, or is not accepted.
    """

    def __init__(self, path: str, frames: int | None = None) -> None:
        super().__init__(path)
        reason = self._why_unsafe()
        if not reason:
            self._reader = self._open()
            if len(self._reader) != len(self):
                reason = f"it counts {len(self._reader)} of {len(self)}"
            elif not np.array_equal(self._images([0])[0], super()._images([0])[0]):
                reason = "other pixels than those of PyAV, as of mirrored videos"
        if reason:
            raise VideoError(path, f"decord may return wrong frames ({reason}); use decoder auto")

    def _why_unsafe(self) -> str:
        """Why decord may return wrong frames, or ""."""
        timeline, context = self.timeline, self._stream.codec_context
        components = context.format.components if context.format else ()
        bits = max((component.bits for component in components), default=8)
        if timeline.not_seekable:
            return timeline.not_seekable
        if timeline.codec != "h264" or bits != 8:
            return f"{bits}-bit {timeline.codec}"
        if timeline.open_gop:
            return "open groups of pictures"
        if context.field_order not in (0, 1):  # unknown, progressive
            return "interlaced"
        if timeline.in_doubt:
            return "times of decoding instead of presentation"
        if not self._has_true_keyframes():
            return "wrong marks of keyframes"
        if "mov" in timeline.container and timeline.header_frames != len(timeline):
            return "fragmented file, or frames that are not shown"
        return ""

    def _has_true_keyframes(self) -> bool:
        """Whether decoding can start at each frame that the container marks as a keyframe."""
        import av

        times = self.timeline.keyframe_times.tolist()
        try:
            return all(any(True for _ in self._decode_from_keyframe(time, ())) for time in times)
        except av.error.FFmpegError:
            return False

    def _open(self) -> decord.VideoReader:
        import decord  # not at import: only decoding needs it

        decord.logging.set_level(decord.logging.QUIET)
        try:
            with open(self.path, "rb") as file:
                name = f"/dev/fd/{file.fileno()}"  # no address, whatever the name of the file
                # decord raises above this tolerance; its default repeats frames that do not decode.
                return decord.VideoReader(name, num_threads=1, fault_tol=1e-9)
        except Exception as error:  # of several classes
            raise VideoError(self.path, f"decord cannot open it ({_first_line(error)})") from None

    def _images(self, indices: Sequence[int]) -> dict[int, np.ndarray]:
        images = {}
        for index in indices:
            try:
                self._reader.seek_accurate(index)
                frame = self._reader.next().asnumpy()
            except Exception as error:  # of several classes
                self._reader = self._open()
                # decord decodes ahead: the damaged frame may be a later one.
                cause = f"corrupt or truncated at this frame or later ({_first_line(error)})"
                raise VideoError(self.path, cause, index) from None
            # Its channels are the bytes of a padded row, divided by the width: 4 for 96 pixels.
            height, width, _ = frame.shape
            rows = frame.reshape(height, -1)[:, : 3 * width]
            images[index] = rows.reshape(height, width, 3)
        return images


def _first_line(error: Exception) -> str:
    """decord's message, without time, source line and stack trace."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rsplit("] ", 1)[-1].rsplit(") ", 1)[-1]
