"""Read the frames of a video in sequence, and write them as images or as H.264."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ffn.data.decoding import PATTERN, FrameFolder, VideoError
from ffn.data.decoding.container import decode_frames, open_container, read_timeline, to_rgb

if TYPE_CHECKING:
    import av

# FFmpeg filters that rotate a frame to upright, by counterclockwise rotation in degrees.
_UPRIGHT = {0: (), 90: ("transpose=cclock",), 180: ("hflip", "vflip"), 270: ("transpose=clock",)}
QUANTIZER = "20"  # of H.264, 0 (lossless) to 51
_EXACT = "bicubic+accurate_rnd+full_chroma_int+full_chroma_inp"


def read_frames(path: str, chosen: range, pattern: str) -> Iterator[av.VideoFrame]:
    """Read frames of a file or folder one at a time, without rotation.

    Args:
        path: Video file or frame folder.
        chosen: Indices of the frames.
        pattern: File name of a frame in a folder.

    Raises:
        VideoError: if a frame cannot be decoded.
    """
    if Path(path).is_dir():
        return _folder_frames(path, chosen, pattern)
    return _file_frames(path, chosen)


def write_images(
    folder: Path, frames: Iterator[av.VideoFrame], short_side: int | None, quality: int
) -> None:
    """Write frames upright as 00001.jpg, 00002.jpg, … into a new folder."""
    from PIL import Image

    folder.mkdir(parents=True)
    for number, frame in enumerate(frames, 1):
        image = Image.fromarray(np.ascontiguousarray(to_rgb(frame)))
        size = smaller(*image.size, short_side)
        if size != image.size:
            image = image.resize(size, Image.Resampling.BICUBIC)
        image.save(folder / PATTERN.format(number), quality=quality)


def encode_mp4(
    path: Path,
    frames: Iterator[av.VideoFrame],
    *,
    rate: float,
    short_side: int | None,
    gop: int,
) -> None:
    """Write frames upright as H.264 in mp4, with constant rate and quantizer, without audio.

    Groups of pictures are closed and have no B-frames, so decoding from the nearest key frame gives
    the same pixels as decoding from the start.
    """
    import av

    options = {
        "qp": QUANTIZER,
        "preset": "veryfast",
        "bf": "0",
        "sc_threshold": "0",
        "x264-params": "open-gop=0",
    }
    first = next(frames)
    filters = _Filters(first, short_side)
    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        rate = Fraction(rate).limit_denominator(1001)
        stream = container.add_stream("libx264", rate=rate, options=options)
        stream.width, stream.height, stream.pix_fmt = *filters.size, "yuv420p"
        context = stream.codec_context
        context.gop_size, context.thread_count = gop, 1
        context.colorspace, context.color_range = 6, 1  # BT.601, limited range, as the filters
        context.time_base = 1 / rate
        for index, frame in enumerate(map(filters, chain([first], frames))):
            frame.pts, frame.time_base = index, 1 / rate
            frame.pict_type = 0  # the encoder decides
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


class _Filters:
    """FFmpeg filters that make frames like the first one upright, small and yuv420p.

    They convert through RGB with the most exact arithmetic and ignore the color tags of the file,
    as the decoders do. The copy then decodes to the colors of the original.
    """

    def __init__(self, frame: av.VideoFrame, short_side: int | None) -> None:
        import av

        steps = list(_UPRIGHT[frame.rotation // 90 * 90 % 360])
        width, height = frame.width, frame.height
        if steps and steps[0].startswith("transpose"):
            width, height = height, width
        self.size = smaller(width, height, short_side, even=True)
        steps += [
            f"scale={self.size[0]}:{self.size[1]}:flags={_EXACT}",
            "format=rgb24",
            "setsar=1",
            f"scale=out_color_matrix=bt601:out_range=tv:flags={_EXACT}",
            "format=yuv420p",
        ]
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


def smaller(
    width: int, height: int, short_side: int | None, *, even: bool = False
) -> tuple[int, int]:
    """Size with a shorter side of at most `short_side` and the same aspect ratio.

    With `even`, both sides are rounded to even numbers.

    Example: 1920 x 1080 with 256 and `even` becomes 456 x 256 (455.1 rounded to even).
    """
    scale = 1.0 if short_side is None else min(1.0, short_side / min(width, height))
    step = 2 if even else 1
    sides = (max(step, round(side * scale / step) * step) for side in (width, height))
    return tuple(sides)


def _file_frames(path: str, chosen: range) -> Iterator[av.VideoFrame]:
    """Frames by index, with the numbering of the decoders: by time if packets have times."""
    with open_container(path) as container:
        timeline = read_timeline(path, container)
    index_at = {} if timeline.not_seekable else {int(t): i for i, t in enumerate(timeline.times)}
    done, size = 0, None
    with open_container(path) as container:
        for position, frame in enumerate(decode_frames(path, container)):
            index = position if timeline.not_seekable else index_at.get(frame.pts, -1)
            if index in chosen:
                size = size or (frame.width, frame.height)
                if size != (frame.width, frame.height):
                    cause = (
                        f"is {frame.width} x {frame.height} pixels, others {size[0]} x {size[1]}"
                    )
                    raise VideoError(path, cause, index)
                yield frame
                done += 1
    if done != len(chosen):
        raise VideoError(path, f"{done} of {len(chosen)} frames decode")


def _folder_frames(path: str, chosen: range, pattern: str) -> Iterator[av.VideoFrame]:
    import av

    folder = FrameFolder(path, pattern)
    for index in chosen:
        yield av.VideoFrame.from_ndarray(folder.read([index])[0].numpy(), format="rgb24")
