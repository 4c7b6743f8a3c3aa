"""Pictures of predictions: a contact sheet or a GIF of a clip, and a video with its labels.

Sheets and GIFs may have a heat map (:mod:`ffn.serve.heat_maps`) over the frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ffn.data.contact_sheet import THUMBNAIL, WHITE, Panel, Strip, save_contact_sheet, write_line
from ffn.files import atomic_write
from ffn.serve.clips import Clip
from ffn.serve.heat_maps import HeatMap
from ffn.serve.inputs import Input, frame_times, open_input
from ffn.serve.prediction import Prediction
from ffn.serve.windows import Segment

if TYPE_CHECKING:
    from PIL.Image import Image

LABELS = 3  # in one line, of videos with several labels
HEAT_THUMBNAIL = 192  # longest side of a frame in a contact sheet with a heat map, pixels
GIF_SIZE = 256  # shortest side of a GIF's frames, pixels
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
    """Write a picture, ``.png`` or ``.gif``, or a video, ``.mp4``, of a prediction.

    Other arguments are those of :func:`save_video`; pictures may have a heat map of the clip.

    Raises:
        VideoError: see :func:`save_video`.
        ValueError: if a heat map is given for a video.
    """
    if path.suffix.lower() == ".png":
        _save_sheet(path, clip, prediction, heat)
    elif path.suffix.lower() == ".gif":
        _save_gif(path, clip, prediction, heat)
    elif heat is None:
        segments = _whole_video(prediction)
        save_video(path, given, segments, pattern=pattern, fps=fps)
    else:
        raise ValueError(f"a heat map is drawn into *.png or *.gif, not into {path}")


def _save_sheet(path: Path, clip: Clip, prediction: Prediction, heat: HeatMap | None) -> None:
    """Draw the frames that the network saw, with their indices and the labels."""
    lines = [f"{probability:6.1%}  {label}" for label, probability in prediction.top(5)]
    frames = ", ".join(map(str, prediction.indices))
    title = f"The {len(prediction.indices)} frames of the clip"
    side = THUMBNAIL if heat is None else HEAT_THUMBNAIL
    strips = [Strip(clip.pixels, f"frames {frames}", side)]
    if heat is not None:
        title = _title(heat, prediction)
        none = "" if heat.values.any() else ": no evidence"
        lines.append(f"Grad-CAM of {heat.layer}{none}")
        drawn = torch.from_numpy(heat.overlay()).permute(3, 0, 1, 2)  # (C, T, H, W)
        strips.append(Strip(drawn, "heat map", side))
    panel = Panel(f"{prediction.path}: {prediction.how}", lines, strips)
    save_contact_sheet(path, title, [panel])


def _save_gif(path: Path, clip: Clip, prediction: Prediction, heat: HeatMap | None) -> None:
    """Write the frames that the network saw, with the label, in the time of the video."""
    frames = heat.overlay() if heat else clip.pixels.permute(1, 2, 3, 0).numpy()  # (T, H, W, C)
    factor = max(1, round(GIF_SIZE / min(frames.shape[1:3])))
    text = _title(heat, prediction) if heat else _label_at(_whole_video(prediction), 0)
    pictures = [_draw_label(frame.repeat(factor, 0).repeat(factor, 1), text) for frame in frames]
    total = clip.seconds or len(frames) / FRAMES_PER_SECOND
    # Viewers slow down shorter ones; the format has 16 bits for hundredths of a second.
    milliseconds = min(max(20, round(1000 * total / len(frames))), 655_350)
    options = {"save_all": True, "append_images": pictures[1:], "loop": 0}
    with atomic_write(path) as file:
        pictures[0].save(file, format="GIF", duration=milliseconds, **options)


def save_video(
    path: Path,
    given: Input,
    segments: Sequence[Segment],
    *,
    pattern: str,
    fps: float | None = None,
) -> None:
    """Write a whole video with the label of each time as mp4 (H.264, without sound).

    Where there is no segment, no label is written. A video without times has ``fps`` frames per
    second, by default 10. The file is replaced.

    Raises:
        VideoError: if a frame cannot be decoded.
    """
    import av

    with open_input(given, pattern=pattern) as (_, video):
        times, duration = frame_times(video, fps or FRAMES_PER_SECOND)
        rate = Fraction(len(video) / duration).limit_denominator(1000)
        rate = max(rate, Fraction(1, 1000))  # nominal, since each frame has a time
        with atomic_write(path) as file, av.open(file, "w", format="mp4") as output:
            stream, ticks = None, -1
            for index, image in video.in_order(range(len(video))):
                height, width = image.shape[:2]
                image = image[: height - height % 2, : width - width % 2]  # H.264 needs even sides
                if stream is None:
                    options = {"crf": "20"}
                    stream = output.add_stream("libx264", rate=rate, options=options)
                    stream.height, stream.width = image.shape[:2]
                    stream.pix_fmt, stream.codec_context.time_base = "yuv420p", TIME_BASE
                now = float(times[index])
                picture = _draw_label(image, _label_at(segments, now))
                frame = av.VideoFrame.from_image(picture)
                ticks = max(ticks + 1, round(now / TIME_BASE))  # H.264 needs ascending times
                frame.pts, frame.time_base = ticks, TIME_BASE
                output.mux(stream.encode(frame))
            output.mux(stream.encode())


def _whole_video(prediction: Prediction) -> list[Segment]:
    """The segments of a prediction for a whole video, which have no end."""
    if prediction.multi_label:
        top = [(label, p) for label, p in prediction.top(LABELS) if p >= 0.5]
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


def _draw_label(image: np.ndarray, text: str) -> Image:
    """A frame with a text on a dark bar at its lower edge."""
    from PIL import Image

    picture = Image.fromarray(image)
    size = max(8, min(image.shape[:2]) // 16)
    bar = Image.new("RGB", (picture.width, min(2 * size, picture.height)))
    top = picture.height - bar.height
    below = picture.crop((0, top, picture.width, picture.height))
    picture.paste(Image.blend(below, bar, 0.6), (0, top))
    write_line(picture, (size // 2, top + size // 4), picture.width - size // 2, text, size, WHITE)
    return picture
