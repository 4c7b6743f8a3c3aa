"""Names of the images in a folder of frames: the files of a pattern, and the patterns of files.

A pattern contains one field for a number that counts from 0 or 1, as `img_{:05d}.jpg`, or `*` for
any number, as `*-color.png`: of timestamps, or from another number on.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal

from ffn.data.decoding.video import VideoError
from ffn.data.suffixes import IMAGE_SUFFIXES, is_system_name

PATTERN = "{:05d}.jpg"  # default name of a frame
SHOWN = 4  # patterns in a message
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_NOT_RGB = re.compile("depth|disp|flow|label|mask|normal|seg", re.IGNORECASE)


def check_pattern(pattern: str) -> None:
    """Check that a name pattern contains exactly one field for the number of a frame, or a `*`.

    Raises:
        ValueError: if it does not.
    """
    try:
        valid = "*" in pattern or pattern.format(0) != pattern.format(1)
    except (IndexError, KeyError, ValueError):
        valid = False
    if not valid:
        raise ValueError(
            f"pattern is {pattern!r}; expected exactly one field for the number, e.g. "
            f"'{PATTERN}', or * for any number, e.g. '*.jpg'"
        )


def find_names(folder: str, pattern: str) -> list[str]:
    """Names of the files that match a pattern with `*`, by their numbers.

    Raises:
        VideoError: if there is none, or two have the same number.
    """
    expression = re.compile(f"({_NUMBER.pattern})".join(map(re.escape, pattern.split("*"))))
    names: dict[tuple[Decimal, ...], str] = {}
    for match in filter(None, map(expression.fullmatch, os.listdir(folder))):
        other = names.setdefault(tuple(map(Decimal, match.groups())), match[0])
        if other != match[0]:
            raise VideoError(folder, f"{other} and {match[0]} have the same number; rename one")
    if not names:
        raise VideoError(folder, f"no image {pattern}; {describe_names(folder)}")
    return [names[numbers] for numbers in sorted(names)]


def find_patterns(names: Iterable[str]) -> list[tuple[str, int]]:
    """Patterns of images, each with its number of images; those of flow, depth, … are last.

    Example: of img_00001.jpg, img_00002.jpg, 17-depth.png and 20-depth.png they are
    `img_{:05d}.jpg` and `*-depth.png`.
    """
    shapes = defaultdict(list)
    for name in names:
        shapes[tuple(_NUMBER.split(name))].append(_NUMBER.findall(name))
    found = {}
    for texts, rows in shapes.items():
        columns = [{*column} for column in zip(*rows, strict=True)]
        changing = [column for column in columns if len(column) > 1] or columns[-1:]
        field = _field(*changing) if len(changing) == 1 else "*"
        fields = [field if column in changing else min(column) for column in columns]
        if fields:
            found["".join(map("".join, zip(texts, [*fields, ""], strict=True)))] = len(rows)
    return sorted(found.items(), key=lambda one: (bool(_NOT_RGB.search(one[0])), -one[1], one[0]))


def _field(numbers: set[str]) -> str:
    """The field for numbers that count from 0 or 1; `*` for others."""
    width = min(map(len, numbers))
    field = f"{{:0{width}d}}" if width > 1 else "{}"
    counts = ({field.format(first + i) for i in range(len(numbers))} for first in (0, 1))
    return field if numbers in counts else "*"


def describe_names(folder: str) -> str:
    """How the images of a folder are named, and which pattern to give."""
    names = [name for name in os.listdir(folder) if not is_system_name(name)]
    if not names:
        return "the folder is empty"
    images = [name for name in names if name.lower().endswith(IMAGE_SUFFIXES)]
    found = find_patterns(images or names)
    if not found:
        return f"none of its {len(names)} entries has a number; the first is {min(names)}"
    shown = ", ".join(f"{pattern!r} ({count})" for pattern, count in found[:SHOWN])
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return (
        f"its files are named {shown}{more}, with * for a number. Give the pattern of the frames, "
        f"e.g. {found[0][0]!r}: data.frame_pattern in a config, --pattern in a command, pattern= "
        "in Python"
    )
