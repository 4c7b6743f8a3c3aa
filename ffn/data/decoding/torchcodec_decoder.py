"""Decode video files with torchcodec; only files of which it returns the right frames."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from ffn.data.decoding.timeline import SeekableFile
from ffn.data.decoding.video import VideoError, check_indices


class TorchCodecDecoder(SeekableFile):
    """A video file, decoded by torchcodec on one thread; the interface is that of `PyAVDecoder`.

    torchcodec scans the file (`seek_mode="exact"`), since its approximate mode assumes a constant
    frame rate. Files that are not seekable are refused. 10-bit video and odd frame sizes are
    refused too: their colors differ from those of the other decoders by more than rounding.

    Args:
        path: The file.
        frames: Ignored: the packets of an accepted file give its number of frames.

    Raises:
        VideoError: if the file cannot be opened, or is not accepted.
        ModuleNotFoundError: if torchcodec (extra `torchcodec`) or FFmpeg's shared libraries are not
            installed.
    """

    def __init__(self, path: str, frames: int | None = None) -> None:
        super().__init__(path)
        reason = self.timeline.not_seekable
        if not reason and self.timeline.bit_depth != 8:
            reason = f"{self.timeline.bit_depth}-bit video, whose colors would differ"
        if reason:
            raise VideoError(path, f"not supported by torchcodec ({reason}); use decoder auto")
        decoder = _decoder_class()
        try:
            self._decoder = decoder(
                path, seek_mode="exact", num_ffmpeg_threads=1, dimension_order="NHWC"
            )
        except (RuntimeError, ValueError) as error:
            raise VideoError(path, f"torchcodec cannot open it ({_first_line(error)})") from None
        self.check_count("torchcodec", len(self._decoder))
        metadata = self._decoder.metadata
        if metadata.width % 2 or metadata.height % 2:
            reason = f"{metadata.width} x {metadata.height} pixels, whose colors would differ"
            raise VideoError(path, f"not supported by torchcodec ({reason}); use decoder auto")

    def read(self, indices: Iterable[int]) -> Tensor:
        """See `PyAVDecoder.read`."""
        indices = list(indices)
        check_indices(self.path, indices, len(self))
        unique = sorted(set(indices))
        try:
            frames = self._decoder.get_frames_at(unique).data
        except (RuntimeError, ValueError, IndexError) as error:
            cause = f"corrupt or truncated at this frame or later ({_first_line(error)})"
            raise VideoError(self.path, cause, unique[0]) from None
        return frames[[unique.index(i) for i in indices]]


def _decoder_class() -> type:
    try:
        from torchcodec.decoders import VideoDecoder
    except (ImportError, RuntimeError, OSError) as error:
        raise ModuleNotFoundError(
            "decoder torchcodec needs torchcodec and FFmpeg's shared libraries; run "
            "pip install 'frame-flexible[torchcodec]' and install FFmpeg "
            f"({_first_line(error)})"
        ) from error
    return VideoDecoder


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
