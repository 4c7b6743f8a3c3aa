"""Contact sheets: pictures with the frames of several clips, and text about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from ffn.data.crops import resize_to
from ffn.files import atomic_write

if TYPE_CHECKING:
    from PIL.Image import Image

THUMBNAIL = 96  # longest side of a frame in the picture, pixels
PER_LINE = 16  # frames of this size; longer clips continue in the next line
LABEL_WIDTH = 100
PANEL_WIDTH = 596  # at least, so that the text fits
GAP, MARGIN = 4, 16
TITLE, TEXT, SMALL = 18, 14, 11  # font sizes
BLACK, GRAY, WHITE = "#000000", "#666666", "#FFFFFF"


@dataclass(frozen=True)
class Strip:
    """The frames of one clip.

    Attributes:
        clip: uint8 RGB (C, T, H, W).
        label: Lines on the left of the frames.
        captions: Text below each frame; empty for none.
        side: Longest side of a frame in the picture, pixels.
    """

    clip: Tensor
    label: str = ""
    captions: Sequence[str] = ()
    side: int = THUMBNAIL

    @property
    def per_line(self) -> int:
        """Frames in a line; further ones continue in the next line."""
        return max(1, PER_LINE * THUMBNAIL // self.side)


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
        return resize_to(frames, (height, width))
    factor = side // longer
    return frames.repeat_interleave(factor, -2).repeat_interleave(factor, -1)


def save_contact_sheet(path: str | Path, title: str, panels: Sequence[Panel]) -> Path:
    """Draw panels below each other into a PNG file.

    Lines that are too long are shortened in their middle. The font has Latin characters only.

    Args:
        path: The file; it is replaced if it exists.
        title: Line at the top.
        panels: The videos, from top to bottom.
    """
    from PIL import ImageOps

    strips = [[_draw_strip(strip) for strip in panel.strips] for panel in panels]
    width = max([PANEL_WIDTH, *(strip.width for own in strips for strip in own)])
    parts = [_line(title, width, TITLE, BLACK)]
    for panel, own in zip(panels, strips, strict=True):
        lines = [_line(line, width, TEXT, GRAY) for line in panel.lines]
        parts.append(_stack([_line(panel.title, width, TITLE, BLACK), *lines, *own]))
    sheet = ImageOps.expand(_stack(parts, gap=MARGIN), MARGIN, WHITE)
    with atomic_write(Path(path)) as file:
        sheet.save(file, format="PNG")
    return Path(path)


def _draw_strip(strip: Strip) -> Image:
    """The frames of a clip in lines, with their captions and the label."""
    from PIL import Image

    cells = [
        Image.fromarray(frame.permute(1, 2, 0).numpy())
        for frame in _thumbnails(strip.clip, strip.side)
    ]
    if strip.captions:
        cells = [
            _stack([cell, _line(caption, cell.width, SMALL, GRAY)])
            for cell, caption in zip(cells, strip.captions, strict=True)
        ]
    number = strip.per_line
    frames = _stack(
        [_stack(cells[i : i + number], across=True) for i in range(0, len(cells), number)]
    )
    if not strip.label:
        return frames
    lines = [_line(line, LABEL_WIDTH, TEXT, BLACK) for line in strip.label.splitlines()]
    return _stack([_stack(lines), frames], across=True)


def _stack(images: Sequence[Image], *, across: bool = False, gap: int = GAP) -> Image:
    """Images below each other, or side by side, on white."""
    from PIL import Image

    lengths = [image.width if across else image.height for image in images]
    breadth = max(image.height if across else image.width for image in images)
    length = sum(lengths) + gap * (len(images) - 1)
    stacked = Image.new("RGB", (length, breadth) if across else (breadth, length), WHITE)
    place = 0
    for image, own in zip(images, lengths, strict=True):
        stacked.paste(image, (place, 0) if across else (0, place))
        place += own + gap
    return stacked


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
