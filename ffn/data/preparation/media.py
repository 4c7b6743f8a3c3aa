"""Frames of a video one after another, and writing them as images or as H.264."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ffn.data.decoding import PATTERN, FrameFolder, VideoError

if TYPE_CHECKING:
    import av

# FFmpeg's filters that set a frame upright, by the angle that turns it counterclockwise.
_UPRIGHT = {0: (), 90: ("transpose=cclock",), 180: ("hflip", "vflip"), 270: ("transpose=clock",)}
_EXACT = "bicubic+accurate_rnd+full_chroma_int+full_chroma_inp"


def import_av() -> ModuleType:
    """PyAV.

    Raises:
        ModuleNotFoundError: if the extra `video` is not installed.
    """
    try:
        import av
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "copying videos needs PyAV; install the extra: pip install 'frame-flexible[video]'"
        ) from error
    return av


def read_frames(
    path: str, count: int, chosen: range, pattern: str, short_side: int | None, form: str
) -> Iterator[av.VideoFrame]:
    """Frames of a file or folder, upright and made smaller, one at a time.

    Args:
        path: Video file or frame folder.
        count: How many frames it must have.
        chosen: Those to return.
        pattern: Name of a frame in a folder.
        short_side: In pixels, or None; smaller films stay as they are.
        form: Pixel format, `rgb24` or `yuv420p`; the sides of the latter are made even.

    Raises:
        VideoError: if it does not decode to `count` frames.
    """
    av = import_av()
    frames = _folder_frames(path, pattern) if Path(path).is_dir() else _file_frames(path)
    filters = None
    done = 0
    try:
        for index, frame in enumerate(frames):
            done = index + 1
            if index in chosen:
                filters = filters or _Filters(frame, short_side, form)
                yield filters(frame)
    except av.FFmpegError as error:
        raise VideoError(path, f"corrupt or cut off ({error.strerror})", done) from None
    if done != count:
        raise VideoError(path, f"decodes to {done} frames where {count} are expected")


def write_images(folder: Path, frames: Iterator[av.VideoFrame], quality: int) -> None:
    """Write frames as 00001.jpg, 00002.jpg, … into a new folder."""
    folder.mkdir(parents=True)
    for number, frame in enumerate(frames, 1):
        frame.to_image().save(folder / PATTERN.format(number), quality=quality)


def encode_mp4(
    path: Path, frames: Iterator[av.VideoFrame], rate: float, gop: int, quantiser: int
) -> None:
    """Write frames as H.264 in mp4 at a constant rate and quantiser, without sound.

    Each group of pictures is closed and has no frames that depend on later ones, so decoding from
    the nearest key frame gives the same pixels as decoding from the start.
    """
    av = import_av()
    options = {
        "qp": str(quantiser),
        "preset": "veryfast",
        "bf": "0",
        "sc_threshold": "0",
        "x264-params": "open-gop=0",
    }
    first = next(frames)
    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        rate = Fraction(rate).limit_denominator(1001)
        stream = container.add_stream("libx264", rate=rate, options=options)
        stream.width, stream.height, stream.pix_fmt = first.width, first.height, "yuv420p"
        context = stream.codec_context
        context.gop_size, context.thread_count = gop, 1
        context.colorspace, context.color_range = 6, 1  # BT.601, limited: as the filters make it
        context.time_base = 1 / rate
        for index, frame in enumerate(chain([first], frames)):
            frame.pts, frame.time_base = index, 1 / rate
            frame.pict_type = 0  # left to the encoder, not copied from the source
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


class _Filters:
    """A chain of FFmpeg's filters for frames like the first one."""

    def __init__(self, frame: av.VideoFrame, short_side: int | None, form: str) -> None:
        av = import_av()
        angle = frame.rotation % 360
        steps = list(_UPRIGHT[min(_UPRIGHT, key=lambda known: abs(known - angle))])
        width, height = frame.width, frame.height
        if "transpose" in "".join(steps):
            width, height = height, width
        width, height = _smaller(width, height, short_side, even=form == "yuv420p")
        flags = "bicubic" if form == "rgb24" else _EXACT
        steps += [f"scale={width}:{height}:flags={flags}", "format=rgb24", "setsar=1"]
        if form == "yuv420p":
            # By way of the RGB that training sees, whatever the file says of its colours.
            steps += [f"scale=out_color_matrix=bt601:out_range=tv:flags={_EXACT}", "format=yuv420p"]
        self._graph = av.filter.Graph()
        self._in = self._graph.add_buffer(
            width=frame.width,
            height=frame.height,
            format=frame.format,
            time_base=Fraction(1, 1000),
        )
        last = self._in
        for step in steps:
            name, _, arguments = step.partition("=")
            following = self._graph.add(name, arguments or None)
            last.link_to(following)
            last = following
        self._out = self._graph.add("buffersink")
        last.link_to(self._out)
        self._graph.configure()
        self._shown = 0

    def __call__(self, frame: av.VideoFrame) -> av.VideoFrame:
        frame.pts, frame.time_base = self._shown, Fraction(1, 1000)
        self._shown += 1
        self._in.push(frame)
        return self._out.pull()


def _smaller(width: int, height: int, short_side: int | None, even: bool) -> tuple[int, int]:
    """Size with a short side of at most `short_side` and the same shape, in even numbers if asked.

    Example: 1920 x 1080 with 256 becomes 456 x 256 (455.1 to the nearest even number).
    """
    scale = 1.0 if short_side is None else min(1.0, short_side / min(width, height))
    step = 2 if even else 1
    sides = (max(step, round(side * scale / step) * step) for side in (width, height))
    return tuple(sides)


def _file_frames(path: str) -> Iterator[av.VideoFrame]:
    av = import_av()
    with av.open(path, metadata_errors="replace") as container:
        if not container.streams.video:
            raise VideoError(path, "the file has no video stream")
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        yield from container.decode(stream)


def _folder_frames(path: str, pattern: str) -> Iterator[av.VideoFrame]:
    av = import_av()
    folder = FrameFolder(path, pattern)
    for index in range(len(folder)):
        yield av.VideoFrame.from_ndarray(folder.read([index])[0].numpy(), format="rgb24")
