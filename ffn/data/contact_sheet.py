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
LABEL_WIDTH = 104
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


def thumbnails(clip: Tensor, side: int = THUMBNAIL) -> Tensor:
    """Frames in the size of a contact sheet: the longer side at most ``side`` pixels.

    Smaller frames are enlarged by a whole factor, without interpolation.

    Args:
        clip: uint8 RGB (C, T, H, W).
        side: Largest length of the longer side, in pixels.

    Returns:
        uint8 RGB (T, C, h, w).
    """
    frames = clip.transpose(0, 1)  # (T, C, H, W)
    longer = max(frames.shape[-2:])
    if longer > side:
        height, width = (max(1, round(length * side / longer)) for length in frames.shape[-2:])
        return resize_to(frames, (height, width))
    factor = side // longer
    return frames.repeat_interleave(factor, -2).repeat_interleave(factor, -1)


def save_contact_sheet(
    path: str | Path, title: str, panels: Sequence[Panel], *, columns: int = 1
) -> Path:
    """Draw panels into a PNG file.

    Lines that are too long are shortened in their middle. The font has Latin characters only.

    Args:
        path: The file; it is replaced if it exists.
        title: Line at the top.
        panels: The videos, row by row.
        columns: Panels in a row.
    """
    from PIL import Image

    drawn = [_draw_panel(panel) for panel in panels]
    columns = max(1, min(columns, len(drawn)))
    width = max([image.width for image in drawn], default=PANEL_WIDTH)
    rows = [drawn[i : i + columns] for i in range(0, len(drawn), columns)]
    heights = [max(image.height for image in row) for row in rows]
    top = MARGIN + 2 * TITLE

    sheet = Image.new(
        "RGB",
        (MARGIN + columns * (width + MARGIN), top + sum(heights) + MARGIN * (len(rows) + 1)),
        WHITE,
    )
    write_line(sheet, (MARGIN, MARGIN), sheet.width - 2 * MARGIN, title, TITLE, BLACK)
    y = top + MARGIN
    for row, height in zip(rows, heights, strict=True):
        for column, image in enumerate(row):
            sheet.paste(image, (MARGIN + column * (width + MARGIN), y))
        y += height + MARGIN
    with atomic_write(Path(path)) as file:
        sheet.save(file, format="PNG")
    return Path(path)


def _draw_panel(panel: Panel) -> Image:
    """The title, the lines and the clips of a video."""
    from PIL import Image

    strips = [_draw_strip(strip) for strip in panel.strips]
    top = TITLE + 6 + len(panel.lines) * (TEXT + 4) + GAP
    width = max([PANEL_WIDTH, *(s.width for s in strips)])
    height = top + sum(s.height + GAP for s in strips)
    image = Image.new("RGB", (width, height), WHITE)
    write_line(image, (0, 0), width, panel.title, TITLE, BLACK)
    for number, line in enumerate(panel.lines):
        write_line(image, (0, TITLE + 6 + number * (TEXT + 4)), width, line, TEXT, GRAY)
    for strip in strips:
        image.paste(strip, (0, top))
        top += strip.height + GAP
    return image


def _draw_strip(strip: Strip) -> Image:
    """The frames of a clip in lines, with their captions and the label."""
    from PIL import Image

    frames, per_line = thumbnails(strip.clip, strip.side), strip.per_line
    height, width = frames.shape[-2:]
    left = LABEL_WIDTH if strip.label else 0
    across, down = width + GAP, height + GAP + (SMALL + 4 if strip.captions else 0)
    lines, label = -(-len(frames) // per_line), strip.label.splitlines()
    size = (
        left + min(len(frames), per_line) * across - GAP,
        max(lines * down, len(label) * (TEXT + 4)),
    )
    image = Image.new("RGB", size, WHITE)
    for number, line in enumerate(label):
        write_line(image, (0, number * (TEXT + 4)), LABEL_WIDTH - GAP, line, TEXT, BLACK)
    for number, frame in enumerate(frames):
        x, y = left + number % per_line * across, number // per_line * down
        image.paste(Image.fromarray(frame.permute(1, 2, 0).numpy()), (x, y))
        if strip.captions:
            write_line(image, (x, y + height + 2), width, strip.captions[number], SMALL, GRAY)
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
