"""Text in pictures of predictions: labels, bars of probabilities, and the scale of heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ffn.serve.overlays import scale
from ffn.serve.prediction import Prediction

if TYPE_CHECKING:
    from PIL.Image import Image

BARS = 3  # labels below a GIF
TICK_DISTANCE = 6  # pixels between ticks of a video, at least in the mean
WHITE, GRAY, BLACK = "#FFFFFF", "#555555", "#000000"


def draw_label(
    image: np.ndarray,
    text: str,
    position: float,
    ticks: Sequence[float],
    *,
    with_scale: bool = False,
) -> np.ndarray:
    """A frame with a text on a dark bar, and the line of time below it; positions are 0 to 1.

    With the scale of heat maps, it is on the right of the text. Ticks that would hide the line are
    left out.
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
    if with_scale:
        room -= _draw_scale(picture, top + size // 4, size, WHITE)
    font = _font(size)
    draw.text((size // 2, top + size // 4), _fit(draw, text, room, font), fill=WHITE, font=font)
    line, last = picture.height - max(2, size // 4), picture.width - 1
    draw.line((0, line, round(position * last), line), fill=WHITE, width=max(1, size // 8))
    for tick in ticks if len(ticks) <= picture.width // TICK_DISTANCE else ():
        x = round(tick * last)
        draw.line((x, line - size // 4, x, line + size // 4), fill=WHITE)
    return np.asarray(picture)


def _draw_scale(picture: Image, top: int, size: int, color: str) -> int:
    """Draw the scale of heat maps at the right edge, with its ends 0 and 1; returns its width."""
    from PIL import Image, ImageDraw

    draw, width = ImageDraw.Draw(picture), max(4, picture.width // 5)
    left = picture.width - width - 2 * size
    picture.paste(Image.fromarray(scale(width, size)), (left + size, top + size // 8))
    draw.text((left + size // 3, top), "0", fill=color, font=_font(size))
    draw.text((left + size + width + size // 4, top), "1", fill=color, font=_font(size))
    return width + 2 * size


def draw_bars(prediction: Prediction, width: int, title: str = "") -> Image:
    """The most probable labels with bars of their probabilities, and how the network ran.

    Args:
        prediction: with the labels.
        width: of the picture, pixels.
        title: of a heat map: the first line. The scale of heat maps is in the last one.
    """
    from PIL import Image, ImageDraw

    size = max(10, width // 20)
    top, first = prediction.top(BARS), int(title != "")
    image = Image.new("RGB", (width, (first + len(top) + 1) * (size + 8) + 8), WHITE)
    draw, font = ImageDraw.Draw(image), _font(size)
    draw.text((4, 4), _fit(draw, title, width - 8, font), BLACK, font)
    for row, (label, probability) in enumerate(top, first):
        y = 4 + row * (size + 8)
        draw.rectangle((0, y, round(probability * (width - 1)), y + size + 4), fill="#BFD7EA")
        draw.text((4, y), _fit(draw, f"{probability:.0%}  {label}", width - 8, font), BLACK, font)
    note = f"{prediction.frames} frames"
    if prediction.active:
        note += f", sub-network {prediction.active}"
    y = 4 + (first + len(top)) * (size + 8)
    room = width - 8 - (_draw_scale(image, y, size, BLACK) if title else 0)
    draw.text((4, y), _fit(draw, note, room, font), fill=GRAY, font=font)
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
