"""Contact sheets: pictures with the frames of several clips, and text about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from ffn.data.crops import resize
from ffn.files import atomic_write

if TYPE_CHECKING:
    from PIL.Image import Image

THUMBNAIL = 96  # longest side of a frame in the picture, pixels
PER_LINE = 16  # frames of this size; longer clips continue in the next line
PANEL_WIDTH = 596  # at least, so that the text fits
GAP, MARGIN = 4, 16
TITLE, TEXT = 18, 14  # font sizes
BLACK, GRAY, WHITE = "#000000", "#666666", "#FFFFFF"


@dataclass(frozen=True)
class Strip:
    """The frames of one clip.

    Attributes:
        clip: uint8 RGB (C, T, H, W).
        label: Line above the frames.
        side: Longest side of a frame in the picture, pixels.
    """

    clip: Tensor
    label: str
    side: int = THUMBNAIL


@dataclass(frozen=True)
class Panel:
    """The clips of one video.

    Attributes:
        title: First line above the clips.
        lines: Further lines.
        strips: The clips, from top to bottom.
    """

    title: str
    lines: list[str]
    strips: list[Strip]


def _thumbnails(clip: Tensor, side: int) -> Tensor:
    """Frames (T, C, h, w) of a clip, the longer side at most ``side`` pixels.

    Smaller frames are enlarged by a whole factor, without interpolation.
    """
    frames = clip.transpose(0, 1)  # (T, C, H, W)
    longer = max(frames.shape[-2:])
    if longer > side:
        height, width = (max(1, round(length * side / longer)) for length in frames.shape[-2:])
        return resize(frames, height, width)
    factor = side // longer
    return frames.repeat_interleave(factor, -2).repeat_interleave(factor, -1)


def save_contact_sheet(path: str | Path, title: str, panels: Sequence[Panel]) -> Path:
    """Draw a title and panels below each other into a PNG file, or replace it.

    Lines that are too long are shortened in their middle. The font has Latin characters only.
    """
    from PIL import Image

    pictures = [[_draw_frames(strip) for strip in panel.strips] for panel in panels]
    width = max([PANEL_WIDTH, *(picture.width for own in pictures for picture in own)])
    parts = [_line(title, width, TITLE, BLACK)]
    for panel, own in zip(panels, pictures, strict=True):
        parts += [_line("", width, TEXT, WHITE), _line(panel.title, width, TITLE, BLACK)]
        parts += [_line(line, width, TEXT, GRAY) for line in panel.lines]
        for strip, picture in zip(panel.strips, own, strict=True):
            parts += [_line(strip.label, width, TEXT, BLACK), picture]
    height = sum(part.height + GAP for part in parts)
    sheet = Image.new("RGB", (width + 2 * MARGIN, height + 2 * MARGIN), WHITE)
    top = MARGIN
    for part in parts:
        sheet.paste(part, (MARGIN, top))
        top += part.height + GAP
    with atomic_write(Path(path)) as file:
        sheet.save(file, format="PNG")
    return Path(path)


def _draw_frames(strip: Strip) -> Image:
    """The frames of a clip, in lines."""
    from PIL import Image
    from torchvision.utils import make_grid

    per_line = max(1, PER_LINE * THUMBNAIL // strip.side)
    frames = _thumbnails(strip.clip, strip.side)
    grid = make_grid(frames, nrow=per_line, padding=GAP, pad_value=255)
    return Image.fromarray(grid.permute(1, 2, 0).numpy())


def _line(text: str, width: int, size: int, color: str) -> Image:
    from PIL import Image

    image = Image.new("RGB", (width, size + 2), WHITE)
    write_line(image, (0, 0), width, text, size, color)
    return image


def write_line(
    image: Image, place: tuple[int, int], room: int, text: str, size: int, color: str
) -> None:
    """Write a line of text, shortened in its middle to ``room`` pixels."""
    from PIL import ImageDraw

    draw, font = ImageDraw.Draw(image), _font(size)
    shown, kept = text, len(text)
    while kept > 2 and draw.textlength(shown, font=font) > room:
        kept -= 1
        shown = f"{text[: -(-kept // 2)]}…{text[-(kept // 2) :]}"
    draw.text(place, shown, fill=color, font=font)


@cache  # reading it takes longer than writing a line
def _font(size: int) -> object:
    from PIL import ImageFont

    return ImageFont.load_default(size)
