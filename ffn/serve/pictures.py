"""Pictures of predictions: a contact sheet or a GIF of a clip, and a video with its labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ffn.data import VideoError
from ffn.data.contact_sheet import Panel, Strip, save_contact_sheet
from ffn.files import atomic_write
from ffn.serve.clips import Clip
from ffn.serve.inputs import Input, frame_times, frames_in_order, open_input
from ffn.serve.prediction import Prediction
from ffn.serve.windows import Segment

if TYPE_CHECKING:
    from PIL.Image import Image

GIF_SIZE = 256  # shortest side of a GIF's frames, pixels
MAX_SIDE = 1280  # longest side of a written video, pixels
FRAMES_PER_SECOND = 10.0  # of videos without times
TIME_BASE = Fraction(1, 90_000)  # seconds; divides the usual frame rates
BARS = 3  # labels below a GIF
WHITE, GREY, BLUE, BLACK = "#FFFFFF", "#555555", "#1F77B4", "#000000"


def save(
    path: Path,
    given: Input,
    clip: Clip,
    prediction: Prediction,
    *,
    pattern: str,
    fps: float | None = None,
) -> None:
    """Write a picture or a video of a prediction; the suffix of the file says which.

    Args:
        path: the file, ``.png``, ``.gif`` or ``.mp4``; replaced.
        given: the video.
        clip: that was predicted.
        prediction: of the clip.
        pattern, fps: see :func:`save_video`.

    Raises:
        VideoError: see :func:`save_video`.
    """
    if path.suffix.lower() == ".png":
        save_sheet(path, clip.pixels, prediction)
    elif path.suffix.lower() == ".gif":
        save_gif(path, clip.pixels, prediction, seconds=clip.seconds)
    else:
        segments = whole_video(prediction)
        save_video(path, given, segments, clip.indices, pattern=pattern, fps=fps)


def save_sheet(path: Path, clip: Tensor, prediction: Prediction) -> None:
    """Draw the frames that the network saw, with their indices and the labels, as a PNG file.

    Args:
        path: the file; replaced.
        clip: uint8 RGB (C, T, H, W).
        prediction: of the clip.
    """
    lines = [f"{probability:6.1%}  {label}" for label, probability in prediction.top(5)]
    strip = Strip(clip, captions=[str(index) for index in prediction.indices])
    panel = Panel(f"{prediction.path}: {prediction.how}", lines, [strip])
    title = f"The {clip.shape[1]} frames of the clip; below a frame: its index in the video"
    save_contact_sheet(path, title, [panel])


def save_gif(
    path: Path, clip: Tensor, prediction: Prediction, *, seconds: float | None = None
) -> None:
    """Write the frames that the network saw as a GIF, with bars of the most probable labels.

    Args:
        path: the file; replaced.
        clip: uint8 RGB (C, T, H, W).
        prediction: of the clip.
        seconds: that the GIF takes; default: 10 frames per second.
    """
    from PIL import Image

    frames = clip.permute(1, 2, 3, 0).numpy()  # (T, H, W, C)
    factor = max(1, round(GIF_SIZE / min(frames.shape[1:3])))
    size = (factor * frames.shape[2], factor * frames.shape[1])
    labels = _bars(prediction, size[0])
    pictures = []
    for frame in frames:
        picture = Image.new("RGB", (size[0], size[1] + labels.height), WHITE)
        picture.paste(Image.fromarray(frame).resize(size, Image.Resampling.NEAREST), (0, 0))
        picture.paste(labels, (0, size[1]))
        pictures.append(picture)
    total = len(frames) / FRAMES_PER_SECOND if seconds is None else seconds
    milliseconds = max(20, round(1000 * total / len(frames)))  # viewers slow down shorter ones
    with atomic_write(path) as file:
        pictures[0].save(
            file,
            format="GIF",
            save_all=True,
            append_images=pictures[1:],
            duration=milliseconds,
            loop=0,
        )


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

    A line at the lower edge shows the time; ticks mark the frames that the network saw.

    Args:
        path: the file; replaced.
        given: the video, as for a predictor.
        segments: its labels. Where there is none, no label is written.
        seen: indices of the frames that the network saw.
        pattern: file names in a folder of frames.
        fps: frames per second of a video without times; default: 10.

    Raises:
        VideoError: a frame cannot be decoded.
    """
    import av

    with open_input(given, pattern=pattern) as (_, video):
        times, duration = _times(video, fps)
        ticks = [float(times[index]) / duration for index in sorted(set(seen))]
        with atomic_write(path) as file, av.open(file, "w", format="mp4") as output:
            stream = None
            for index, image in frames_in_order(video, range(len(video))):
                image = _shrink(image)
                if stream is None:
                    rate = Fraction(len(video) / duration).limit_denominator(1000)
                    stream = output.add_stream("libx264", rate=rate, options={"crf": "20"})
                    stream.height, stream.width = image.shape[:2]
                    stream.pix_fmt, stream.codec_context.time_base = "yuv420p", TIME_BASE
                text = _label_at(segments, float(times[index]))
                drawn = _draw_label(image, text, float(times[index]) / duration, ticks)
                frame = av.VideoFrame.from_ndarray(drawn, format="rgb24")
                frame.pts, frame.time_base = round(float(times[index]) / TIME_BASE), TIME_BASE
                output.mux(stream.encode(frame))
            output.mux(stream.encode())


def whole_video(prediction: Prediction) -> list[Segment]:
    """The segments of a prediction for a whole video, which have no end."""
    if prediction.multi_label:
        top = [(label, p) for label, p in prediction.top(BARS) if p >= 0.5]
    else:
        top = prediction.top(1)
    return [Segment(0.0, math.inf, label, probability) for label, probability in top]


def _times(video: object, fps: float | None) -> tuple[np.ndarray, float]:
    try:
        return frame_times(video, fps)
    except VideoError:
        return frame_times(video, FRAMES_PER_SECOND)


def _shrink(image: np.ndarray) -> np.ndarray:
    """A frame of at most `MAX_SIDE` pixels, with even sides, as H.264 needs."""
    from PIL import Image

    height, width = image.shape[:2]
    factor = min(1.0, MAX_SIDE / max(height, width))
    size = [max(2, 2 * round(side * factor / 2)) for side in (width, height)]
    if size == [width, height]:
        return np.ascontiguousarray(image)
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR))


def _label_at(segments: Sequence[Segment], time: float) -> str:
    """Labels with their probability at a time."""
    return ", ".join(
        f"{segment.label}  {segment.probability:.0%}"
        for segment in segments
        if segment.start <= time < segment.end
    )


def _draw_label(
    image: np.ndarray, text: str, position: float, ticks: Sequence[float]
) -> np.ndarray:
    """A frame with a text on a dark bar, and the line of time below it; positions are 0 to 1."""
    from PIL import Image, ImageDraw

    picture = Image.fromarray(image)
    size = max(8, min(image.shape[:2]) // 16)
    bar = Image.new("RGB", (picture.width, min(2 * size + 4, picture.height)), BLACK)
    top = picture.height - bar.height
    below = picture.crop((0, top, picture.width, picture.height))
    picture.paste(Image.blend(below, bar, 0.6), (0, top))
    draw = ImageDraw.Draw(picture)
    draw.text((size // 2, top + size // 4), text, fill=WHITE, font=_font(size))
    line, last = picture.height - max(2, size // 4), picture.width - 1
    draw.line((0, line, round(position * last), line), fill=WHITE, width=max(1, size // 8))
    for tick in ticks:
        x = round(tick * last)
        draw.line((x, line - size // 4, x, line + size // 4), fill=WHITE)
    return np.asarray(picture)


def _bars(prediction: Prediction, width: int) -> Image:
    """The most probable labels with bars of their probabilities, and how the network ran."""
    from PIL import Image, ImageDraw

    size = max(10, width // 20)
    top = prediction.top(BARS)
    image = Image.new("RGB", (width, (len(top) + 1) * (size + 8) + 8), WHITE)
    draw, font = ImageDraw.Draw(image), _font(size)
    for row, (label, probability) in enumerate(top):
        y = 4 + row * (size + 8)
        draw.rectangle((0, y, round(probability * (width - 1)), y + size + 4), fill="#BFD7EA")
        draw.text((4, y), _fit(draw, f"{probability:.0%}  {label}", width - 8, font), BLACK, font)
    note = f"{prediction.frames} frames"
    if prediction.active:
        note += f", sub-network {prediction.active}"
    y = 4 + len(top) * (size + 8)
    draw.text((4, y), _fit(draw, note, width - 8, font), fill=GREY, font=font)
    return image


def _fit(draw: object, text: str, width: int, font: object) -> str:
    """A text, shortened to ``width`` pixels."""
    shown = text
    while len(shown) > 2 and draw.textlength(shown, font=font) > width:
        shown = f"{shown[:-2]}…"
    return shown


def _font(size: int) -> object:
    from PIL import ImageFont

    return ImageFont.load_default(size)
