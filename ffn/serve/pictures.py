"""Pictures of predictions: a contact sheet or a GIF of a clip, and a video with its labels.

With a heat map (:mod:`ffn.serve.heat_maps`), it is drawn over the frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ffn.data import EvalTransform, VideoError
from ffn.data.contact_sheet import Panel, Strip, save_contact_sheet
from ffn.files import atomic_write
from ffn.serve.clips import Clip
from ffn.serve.drawing import BARS, WHITE, draw_bars, draw_label
from ffn.serve.heat_maps import HeatMap
from ffn.serve.inputs import Input, frame_times, frames_in_order, open_input
from ffn.serve.overlays import VideoOverlay, scale
from ffn.serve.prediction import Prediction
from ffn.serve.windows import Segment

HEAT_THUMBNAIL = 192  # longest side of a frame in a contact sheet with a heat map, pixels
GIF_SIZE = 256  # shortest side of a GIF's frames, pixels
MAX_SIDE = 1280  # longest side of a written video, pixels
HEAT_SIDE = 240  # shortest side of one with a heat map, at least, for its text
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
        path: the file, ``.png``, ``.gif`` or ``.mp4``; replaced.
        given: the video.
        clip: that was predicted.
        prediction: of the clip.
        pattern, fps: see :func:`save_video`.
        heat: heat map of the clip; None to draw none.

    Raises:
        VideoError: see :func:`save_video`.
    """
    if path.suffix.lower() == ".png":
        save_sheet(path, clip.pixels, prediction, heat)
    elif path.suffix.lower() == ".gif":
        save_gif(path, clip.pixels, prediction, seconds=clip.seconds, heat=heat)
    else:
        segments = whole_video(prediction) if heat is None else [_explained(heat, prediction)]
        save_video(path, given, segments, clip.indices, pattern=pattern, fps=fps, heat=heat)


def save_sheet(
    path: Path, clip: Tensor, prediction: Prediction, heat: HeatMap | None = None
) -> None:
    """Draw the frames that the network saw, with their indices and the labels, as a PNG file.

    Args:
        path: the file; replaced.
        clip: uint8 RGB (C, T, H, W).
        prediction: of the clip.
        heat: heat map of the clip, drawn over the frames in lines of their own.
    """
    lines = [f"{probability:6.1%}  {label}" for label, probability in prediction.top(5)]
    captions = [str(index) for index in prediction.indices]
    title = f"The {clip.shape[1]} frames of the clip; below a frame: its index in the video"
    strips = [Strip(clip, captions=captions)]
    if heat is not None:
        segment = _explained(heat, prediction)
        title = f"Heat map of {segment.label}, {segment.probability:.1%}"
        lines.append(f"{_method(heat)}; below a frame: its index")
        strips = _heat_strips(clip, heat, captions)
    panel = Panel(f"{prediction.path}: {prediction.how}", lines, strips)
    save_contact_sheet(path, title, [panel])


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
        path: the file; replaced.
        clip: uint8 RGB (C, T, H, W).
        prediction: of the clip.
        seconds: that the GIF takes, at most 655 s per frame; default: 10 frames per second.
        heat: heat map of the clip, drawn over its frames.
    """
    from PIL import Image

    frames = clip.permute(1, 2, 3, 0).numpy() if heat is None else heat.overlay()  # (T, H, W, C)
    factor = max(1, round(GIF_SIZE / min(frames.shape[1:3])))
    size = (factor * frames.shape[2], factor * frames.shape[1])
    title = ""
    if heat is not None:
        segment = _explained(heat, prediction)
        title = f"Heat map of {segment.label}  {segment.probability:.0%}"
    labels = draw_bars(prediction, size[0], title)
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
    heat: HeatMap | None = None,
) -> None:
    """Write a whole video with the label of each time as mp4 (H.264, without sound).

    A line at the lower edge shows the time; ticks mark the frames that the network saw, unless they
    are so many that they would hide it.

    Args:
        path: the file; replaced.
        given: the video, as for a predictor.
        segments: its labels. Where there is none, no label is written.
        seen: indices of the frames that the network saw.
        pattern: file names in a folder of frames.
        fps: frames per second of a video without times; default: 10.
        heat: heat map of a clip of the video; over each frame, that of the clip's nearest frame in
            time is drawn, and what the clip does not show is dark.

    Raises:
        VideoError: a frame cannot be decoded.
    """
    import av

    over = None
    if heat is not None:
        box = EvalTransform(heat.preprocessing).box
        over = VideoOverlay(heat.values.numpy(), heat.clip.indices, box)

    with open_input(given, pattern=pattern) as (_, video):
        times, duration = _times(video, fps)
        ticks = [float(times[index]) / duration for index in sorted(set(seen))]
        with atomic_write(path) as file, av.open(file, "w", format="mp4") as output:
            stream = None
            for index, image in frames_in_order(video, range(len(video))):
                size, image = image.shape[:2], _fit_size(image, 0 if heat is None else HEAT_SIDE)
                if over is not None:
                    image = over(image, size, index, times)
                if stream is None:
                    rate = Fraction(len(video) / duration).limit_denominator(1000)
                    rate = max(rate, Fraction(1, 1000))  # nominal: each frame has its time
                    stream = output.add_stream("libx264", rate=rate, options={"crf": "20"})
                    stream.height, stream.width = image.shape[:2]
                    stream.pix_fmt, stream.codec_context.time_base = "yuv420p", TIME_BASE
                text = _label_at(segments, float(times[index]))
                position = float(times[index]) / duration
                drawn = draw_label(image, text, position, ticks, with_scale=heat is not None)
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


def _fit_size(image: np.ndarray, least: int) -> np.ndarray:
    """A frame of at most `MAX_SIDE` pixels, with even sides, as H.264 needs.

    If its shorter side is below ``least``, it is enlarged by a whole factor.
    """
    from PIL import Image

    height, width = image.shape[:2]
    factor = min(1.0, MAX_SIDE / max(height, width))
    if min(height, width) < least:
        factor = max(factor, min(-(-least // min(height, width)), MAX_SIDE // max(height, width)))
    size = [max(2, 2 * round(side * factor / 2)) for side in (width, height)]
    if size == [width, height]:
        return np.ascontiguousarray(image)
    how = Image.Resampling.NEAREST if factor > 1 else Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(image).resize(size, how))


def _label_at(segments: Sequence[Segment], time: float) -> str:
    """Labels with their probability at a time."""
    return ", ".join(
        f"{segment.probability:.0%}  {segment.label}"
        for segment in segments
        if segment.start <= time < segment.end
    )


def _explained(heat: HeatMap, prediction: Prediction) -> Segment:
    """The class of a heat map with the probability of a prediction, for a whole video."""
    probability = float(prediction.probabilities[prediction.classes.index(heat.label)])
    return Segment(0.0, math.inf, heat.label, probability)


def _method(heat: HeatMap) -> str:
    """How a heat map was computed."""
    layers = " and ".join(heat.layers)
    if not heat.values.any():
        return f"Grad-CAM of {layers}: no evidence for this class"
    time, height, width = heat.grid
    return f"Grad-CAM of {layers}: {time} x {height} x {width} positions"


def _heat_strips(clip: Tensor, heat: HeatMap, captions: Sequence[str]) -> list[Strip]:
    """The frames with and without the heat map, in turn, line by line, and the scale."""
    drawn = torch.from_numpy(heat.overlay()).permute(3, 0, 1, 2)  # (C, T, H, W)
    strips: list[Strip] = []
    per_line = Strip(clip, side=HEAT_THUMBNAIL).per_line
    for start in range(0, clip.shape[1], per_line):
        line = slice(start, start + per_line)
        strips.append(Strip(clip[:, line], "frames", side=HEAT_THUMBNAIL))
        strips.append(Strip(drawn[:, line], "heat map", captions[line], HEAT_THUMBNAIL))
    ramp = torch.from_numpy(scale(HEAT_THUMBNAIL, 12)).permute(2, 0, 1)[:, None]  # (C, 1, H, W)
    return [*strips, Strip(ramp, "0 to 1", side=HEAT_THUMBNAIL)]
