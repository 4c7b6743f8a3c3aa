"""A row of annotations as it is written, and what its texts are."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ffn.data.suffixes import VIDEO_SUFFIXES

SUFFIX = rf"(?i:{'|'.join(map(re.escape, VIDEO_SUFFIXES))})"  # a pattern


@dataclass(frozen=True, slots=True)
class AnnotationRow:
    """One unparsed entry of annotations.

    Attributes:
        where: File and line, for messages.
        path: As written.
        label: Class index or class name; in a list with several labels per video, all of them.
        frames: Number of frames, or None.
        start: Start in seconds, or None.
        end: End in seconds, or None.
        width: Width in pixels, or None.
        height: Height in pixels, or None.
        group: Name of the group of related videos, or None.
        extra: Cells of the other columns that the reader asked for, in that order.
    """

    where: str
    path: str
    label: str | tuple[str, ...]
    frames: str | None = None
    start: str | None = None
    end: str | None = None
    width: str | None = None
    height: str | None = None
    group: str | None = None
    extra: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels: one, or any number in a list with several labels per video."""
        return self.label if isinstance(self.label, tuple) else (self.label,)


def is_video(path: str) -> bool:
    """Whether a path has a video suffix."""
    return path.lower().endswith(VIDEO_SUFFIXES)


def is_number(text: str) -> bool:
    """Whether a text has digits alone."""
    return text.isascii() and text.isdigit()


def is_several_numbers(text: str) -> bool:
    """Whether a text is numbers with blanks between them."""
    return re.fullmatch(r"[0-9]+([ \t]+[0-9]+)+", text) is not None


def short(text: object) -> str:
    """A text for messages: quoted, and cut after 100 characters."""
    shown = repr(text)
    return shown if len(shown) <= 100 else f"{shown[:97]}…"
