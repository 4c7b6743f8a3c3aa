"""Pictures of predictions: a contact sheet or a GIF of a clip, and a video with its labels.

Sheets and GIFs may have a heat map (:mod:`ffn.serve.heat_maps`) over the frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ffn.data import VideoError
from ffn.data.contact_sheet import Panel, Strip, save_contact_sheet
from ffn.files import atomic_write
from ffn.serve.clips import Clip
from ffn.serve.heat_maps import HeatMap
from ffn.serve.inputs import Input, frame_times, frames_in_order, open_input
from ffn.serve.prediction import Prediction
from ffn.serve.windows import Segment

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video import VideoStream
    from PIL.Image import Image

BARS = 3  # labels below a GIF
WHITE, GRAY, BLACK, BLUE = "#FFFFFF", "#555555", "#000000", "#BFD7EA"
HEAT_THUMBNAIL = 192  # longest side of a frame in a contact sheet with a heat map, pixels
GIF_SIZE = 256  # shortest side of a GIF's frames, pixels
MAX_SIDE = 1280  # longest side of a written video, pixels
TICK_DISTANCE = 6  # pixels between ticks of a video, at least in the mean
FRAMES_PER_SECOND = 10.0  # of videos without times
TIME_BASE = Fraction(1, 90_000)  # seconds; divides the usual frame rates


def save(
    path: Path,
    given: Input,
    clip: Clip,
    prediction: Prediction,
    *,
    pattern: str,
    fps: float | None = None,
    heat: HeatMap | None = None,
) -> None:
    """Write a picture or a video of a prediction; the suffix of the file says which.

    Args:
        path: The file, ``.png``, ``.gif`` or ``.mp4``; replaced.
        given: The video.
        clip: That was predicted.
        prediction: Of the clip.
        pattern, fps: See :func:`save_video`.
        heat: Heat map of the clip, for sheets and GIFs; None to draw none.

    Raises:
        VideoError: see :func:`save_video`.
        ValueError: if a heat map is given for a video.
    """
    if path.suffix.lower() == ".png":
        save_sheet(path, clip.pixels, prediction, heat)
    elif path.suffix.lower() == ".gif":
        save_gif(path, clip.pixels, prediction, seconds=clip.seconds, heat=heat)
    elif heat is None:
        segments = whole_video(prediction)
        save_video(path, given, segments, clip.indices, pattern=pattern, fps=fps)
    else:
        raise ValueError(f"a heat map is drawn into *.png or *.gif, not into {path}")


def save_sheet(
    path: Path, clip: Tensor, prediction: Prediction, heat: HeatMap | None = None
) -> None:
    """Draw the frames that the network saw, with their indices and the labels, as a PNG file.

    Args:
        path: The file; replaced.
        clip: uint8 RGB (C, T, H, W).
        prediction: Of the clip.
        heat: Heat map of the clip, drawn over the frames in lines of their own.
    """
    lines = [f"{probability:6.1%}  {label}" for label, probability in prediction.top(5)]
    captions = [str(index) for index in prediction.indices]
    title = f"The {clip.shape[1]} frames of the clip; below a frame: its index in the video"
    strips = [Strip(clip, captions=captions)]
    if heat is not None:
        title = f"{_title(heat, prediction)}; below a frame: its index in the video"
        time, height, width = heat.grid
        what = f"{time} x {height} x {width} positions" if heat.values.any() else "no evidence"
        lines.append(f"Grad-CAM of {' and '.join(heat.layers)}: {what}")
        strips = _heat_strips(clip, heat, captions)
    panel = Panel(f"{prediction.path}: {prediction.how}", lines, strips)
    save_contact_sheet(path, title, [panel])


def _heat_strips(clip: Tensor, heat: HeatMap, captions: Sequence[str]) -> list[Strip]:
    """The frames with and without the heat map, in turn, line by line."""
    drawn = torch.from_numpy(heat.overlay()).permute(3, 0, 1, 2)  # (C, T, H, W)
    strips: list[Strip] = []
    per_line = Strip(clip, side=HEAT_THUMBNAIL).per_line
    for start in range(0, clip.shape[1], per_line):
        line = slice(start, start + per_line)
        strips.append(Strip(clip[:, line], "frames", side=HEAT_THUMBNAIL))
        strips.append(Strip(drawn[:, line], "heat map", captions[line], HEAT_THUMBNAIL))
    return strips


def save_gif(
    path: Path,
    clip: Tensor,
    prediction: Prediction,
    *,
    seconds: float | None = None,
    heat: HeatMap | None = None,
) -> None:
    """Write the frames that the network saw as a GIF, with bars of the most probable labels.

    Args:
        path: The file; replaced.
        clip: uint8 RGB (C, T, H, W).
        prediction: Of the clip.
        seconds: That the GIF takes, at most 655 s per frame; default: 10 frames per second.
        heat: Heat map of the clip, drawn over its frames.
    """
    from PIL import Image

    frames = clip.permute(1, 2, 3, 0).numpy() if heat is None else heat.overlay()  # (T, H, W, C)
    factor = max(1, round(GIF_SIZE / min(frames.shape[1:3])))
    size = (factor * frames.shape[2], factor * frames.shape[1])
    labels = _bars(prediction, size[0], "" if heat is None else _title(heat, prediction))
    pictures = []
    for frame in frames:
        picture = Image.new("RGB", (size[0], size[1] + labels.height), WHITE)
        picture.paste(Image.fromarray(frame).resize(size, Image.Resampling.NEAREST), (0, 0))
        picture.paste(labels, (0, size[1]))
        if heat is not None:  # Pillow's own palette lacks colors of the scale
            picture = picture.quantize(256, method=Image.Quantize.MAXCOVERAGE)
        pictures.append(picture)
    total = len(frames) / FRAMES_PER_SECOND if seconds is None else seconds
    # Viewers slow down shorter ones; the format has 16 bits for hundredths of a second.
    milliseconds = min(max(20, round(1000 * total / len(frames))), 655_350)
    options = {"save_all": True, "append_images": pictures[1:], "loop": 0}
    with atomic_write(path) as file:
        pictures[0].save(file, format="GIF", duration=milliseconds, **options)


def save_video(
    path: Path,
    given: Input,
    segments: Sequence[Segment],
    seen: Sequence[int],
    *,
    pattern: str,
    fps: float | None = None,
) -> None:
    """Write a whole video with the label of each time as mp4 (H.264, without sound).

    A line at the lower edge shows the time; ticks mark the frames that the network saw, unless they
    are so many that they would hide it.

    Args:
        path: The file; replaced.
        given: The video, as for a predictor.
        segments: Its labels. Where there is none, no label is written.
        seen: Indices of the frames that the network saw.
        pattern: File names in a folder of frames.
        fps: Frames per second of a video without times; default: 10.

    Raises:
        VideoError: if a frame cannot be decoded.
    """
    import av

    with open_input(given, pattern=pattern) as (_, video):
        try:
            times, duration = frame_times(video, fps)
        except VideoError:
            times, duration = frame_times(video, FRAMES_PER_SECOND)
        ticks = [float(times[index]) / duration for index in sorted(set(seen))]
        with atomic_write(path) as file, av.open(file, "w", format="mp4") as output:
            stream = None
            for index, image in frames_in_order(video, range(len(video))):
                image = _fit_size(image)
                if stream is None:
                    stream = _add_stream(output, image, len(video) / duration)
                now = float(times[index])
                drawn = draw_label(image, _label_at(segments, now), now / duration, ticks)
                frame = av.VideoFrame.from_ndarray(drawn, format="rgb24")
                frame.pts, frame.time_base = round(now / TIME_BASE), TIME_BASE
                output.mux(stream.encode(frame))
            output.mux(stream.encode())


def _add_stream(output: OutputContainer, image: np.ndarray, rate: float) -> VideoStream:
    """A stream for frames like the first one; the rate is nominal, since each frame has a time."""
    nominal = max(Fraction(rate).limit_denominator(1000), Fraction(1, 1000))
    stream = output.add_stream("libx264", rate=nominal, options={"crf": "20"})
    stream.height, stream.width = image.shape[:2]
    stream.pix_fmt, stream.codec_context.time_base = "yuv420p", TIME_BASE
    return stream


def whole_video(prediction: Prediction) -> list[Segment]:
    """The segments of a prediction for a whole video, which have no end."""
    if prediction.multi_label:
        top = [(label, p) for label, p in prediction.top(BARS) if p >= 0.5]
    else:
        top = prediction.top(1)
    return [Segment(0.0, math.inf, label, probability) for label, probability in top]


def _title(heat: HeatMap, prediction: Prediction) -> str:
    probability = float(prediction.probabilities[prediction.classes.index(heat.label)])
    return f"Heat map of {heat.label}  {probability:.0%}"


def _label_at(segments: Sequence[Segment], time: float) -> str:
    """Labels with their probability at a time."""
    return ", ".join(
        f"{segment.probability:.0%}  {segment.label}"
        for segment in segments
        if segment.start <= time < segment.end
    )


def _fit_size(image: np.ndarray) -> np.ndarray:
    """A frame of at most `MAX_SIDE` pixels, with even sides, as H.264 needs."""
    from PIL import Image

    height, width = image.shape[:2]
    factor = min(1.0, MAX_SIDE / max(height, width))
    size = [max(2, 2 * round(side * factor / 2)) for side in (width, height)]
    if size == [width, height]:
        return np.ascontiguousarray(image)
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR))


def draw_label(image: np.ndarray, text: str, position: float, ticks: Sequence[float]) -> np.ndarray:
    """A frame with a text on a dark bar, and the line of time below it; positions are 0 to 1.

    Ticks that would hide the line are left out.
    """
    from PIL import Image, ImageDraw

    picture = Image.fromarray(image)
    size = max(8, min(image.shape[:2]) // 16)
    bar = Image.new("RGB", (picture.width, min(2 * size + 4, picture.height)), BLACK)
    top = picture.height - bar.height
    below = picture.crop((0, top, picture.width, picture.height))
    picture.paste(Image.blend(below, bar, 0.6), (0, top))
    draw = ImageDraw.Draw(picture)
    room = picture.width - size // 2
    font = _font(size)
    draw.text((size // 2, top + size // 4), _fit(draw, text, room, font), fill=WHITE, font=font)
    line, last = picture.height - max(2, size // 4), picture.width - 1
    draw.line((0, line, round(position * last), line), fill=WHITE, width=max(1, size // 8))
    for tick in ticks if len(ticks) <= picture.width // TICK_DISTANCE else ():
        x = round(tick * last)
        draw.line((x, line - size // 4, x, line + size // 4), fill=WHITE)
    return np.asarray(picture)


def _bars(prediction: Prediction, width: int, title: str) -> Image:
    """The most probable labels with bars of their probabilities, and how the network ran.

    The title of a heat map is the first line.
    """
    from PIL import Image, ImageDraw

    size = max(10, width // 20)
    top, first = prediction.top(BARS), int(title != "")
    image = Image.new("RGB", (width, (first + len(top) + 1) * (size + 8) + 8), WHITE)
    draw, font = ImageDraw.Draw(image), _font(size)
    draw.text((4, 4), _fit(draw, title, width - 8, font), BLACK, font)
    for row, (label, probability) in enumerate(top, first):
        y = 4 + row * (size + 8)
        draw.rectangle((0, y, round(probability * (width - 1)), y + size + 4), fill=BLUE)
        draw.text((4, y), _fit(draw, f"{probability:.0%}  {label}", width - 8, font), BLACK, font)
    note = f"{prediction.frames} frames"
    if prediction.active:
        note += f", sub-network {prediction.active}"
    y = 4 + (first + len(top)) * (size + 8)
    draw.text((4, y), _fit(draw, note, width - 8, font), fill=GRAY, font=font)
    return image


def _fit(draw: object, text: str, width: int, font: object) -> str:
    """A text, shortened to ``width`` pixels."""
    shown = text
    while len(shown) > 2 and draw.textlength(shown, font=font) > width:
        shown = f"{shown[:-2]}…"
    return shown


@cache  # reading it takes longer than writing a line
def _font(size: int) -> object:
    from PIL import ImageFont

    return ImageFont.load_default(size)
