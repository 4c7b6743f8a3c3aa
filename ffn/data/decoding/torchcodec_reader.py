"""Video files through torchcodec, where its frames are known to be the right ones."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from ffn.data.decoding.errors import VideoError, check_range
from ffn.data.decoding.timeline import SoughtFile


class TorchCodecFile(SoughtFile):
    """A video file, decoded by torchcodec on one thread; see `PyAVFile` for what the members do.

    torchcodec scans the file ("exact" mode), since its approximate mode takes frames as equally
    spaced. Files whose packets do not tell their frames are refused, and those whose colours would
    differ by more than rounding from what the other readers give: 10-bit video and odd sizes.

    Args:
        path: The file.
        frames: Ignored: the packets of the files that are taken count their frames.

    Raises:
        VideoError: if the file cannot be opened, or torchcodec would give other frames.
        ModuleNotFoundError: if torchcodec, the extra `torchcodec`, or FFmpeg's shared libraries,
            which it loads, are not installed.
    """

    def __init__(self, path: str, frames: int | None = None) -> None:
        super().__init__(path)
        reason = self.timeline.unsought
        if not reason and self.timeline.bits != 8:
            reason = f"colours of {self.timeline.bits}-bit video differ from those of others"
        if reason:
            raise VideoError(path, f"not for torchcodec ({reason}); use decoder auto")
        decoder = _decoder_class()
        try:
            self._decoder = decoder(
                path, seek_mode="exact", num_ffmpeg_threads=1, dimension_order="NHWC"
            )
        except (RuntimeError, ValueError) as error:
            raise VideoError(path, f"torchcodec cannot open it ({_short(error)})") from None
        self.check_count("torchcodec", len(self._decoder))
        about = self._decoder.metadata
        if about.width % 2 or about.height % 2:
            cause = f"colours of {about.width} x {about.height} pixels differ from those of others"
            raise VideoError(path, f"not for torchcodec ({cause}); use decoder auto")

    def read(self, indices: Iterable[int]) -> Tensor:
        """As `PyAVFile.read`."""
        wanted = list(indices)
        check_range(self.path, wanted, len(self))
        chosen = sorted(set(wanted))
        try:
            frames = self._decoder.get_frames_at(chosen).data
        except (RuntimeError, ValueError, IndexError) as error:
            cause = f"corrupt or cut off, there or later ({_short(error)})"
            raise VideoError(self.path, cause, chosen[0]) from None
        return frames[[chosen.index(i) for i in wanted]]


def _decoder_class() -> type:
    try:
        from torchcodec.decoders import VideoDecoder
    except (ImportError, RuntimeError, OSError) as error:
        raise ModuleNotFoundError(
            "decoder torchcodec needs torchcodec and FFmpeg's shared libraries; install the extra: "
            f"pip install 'frame-flexible[torchcodec]', and FFmpeg ({_short(error)})"
        ) from error
    return VideoDecoder


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
