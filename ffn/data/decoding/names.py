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
from pathlib import Path

from ffn.data.decoding.video import VideoError
from ffn.data.suffixes import IMAGE_SUFFIXES, visible

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
        valid = pattern.format(0) != pattern.format(1) or "*" in pattern
    except (IndexError, KeyError, ValueError):
        valid = False
    if not valid:
        raise ValueError(
            f"pattern is {pattern!r}; expected exactly one field for the number, e.g. "
            f"'{PATTERN}', or * for any number, e.g. '*.jpg'"
        )


def find_names(folder: str, pattern: str) -> list[str]:
    """Names of the files that match a pattern, by their numbers.

    Raises:
        VideoError: if there is none, two have the same number, or one is missing.
    """
    with_gaps = re.sub(r"\{.*?\}", "*", pattern)
    expression = f"({_NUMBER.pattern})".join(map(re.escape, with_gaps.split("*")))
    matches = (re.fullmatch(expression, name) for name in os.listdir(folder))
    found: dict[tuple[Decimal, ...], str] = {}
    for match in filter(None, matches):
        other = found.setdefault(tuple(map(Decimal, match.groups())), match[0])
        if other != match[0]:
            raise VideoError(folder, f"{other} and {match[0]} have the same number; rename one")
    names = [found[numbers] for numbers in sorted(found)]
    starts = {pattern.format(number): number for number in (0, 1)}
    if not names or ("*" not in pattern and names[0] not in starts):
        raise VideoError(folder, f"no image {' or '.join(starts)}; {describe_names(folder)}")
    for index, name in enumerate(names if "*" not in pattern else ()):
        if name != (expected := pattern.format(starts[names[0]] + index)):
            cause = f"{expected} is missing; names with gaps have the pattern {with_gaps!r}"
            raise VideoError(folder, cause, index)
    return names


def find_patterns(names: Iterable[str]) -> list[tuple[str, int]]:
    """Patterns of images, each with its number of images; those of flow, depth, … are last.

    Example: of img_00001.jpg, img_00002.jpg, a1_17.png and a1_20.png they are `img_{:05d}.jpg` and
    `a*_*.png`.
    """
    shapes = defaultdict(list)
    for name in names:
        if numbers := _NUMBER.findall(name):
            shapes[_NUMBER.sub("*", name)].append(numbers)
    found = []
    for shape, rows in shapes.items():
        field = _field({row[0] for row in rows}) if len(rows[0]) == 1 else "*"
        found.append((shape.replace("*", field), len(rows)))
    return sorted(found, key=lambda one: (bool(_NOT_RGB.search(one[0])), -one[1], one[0]))


def _field(numbers: set[str]) -> str:
    """The field for numbers that count from 0 or 1; `*` for others."""
    width = min(map(len, numbers))
    field = f"{{:0{width}d}}" if width > 1 else "{}"
    counts = ({field.format(first + i) for i in range(len(numbers))} for first in (0, 1))
    return field if numbers in counts else "*"


def describe_names(folder: str) -> str:
    """How the images of a folder are named, and which pattern to give."""
    names = [entry.name for entry in visible(Path(folder))]
    found = find_patterns(
        [name for name in names if name.lower().endswith(IMAGE_SUFFIXES)] or names
    )
    if not found:
        without = f"no name of its {len(names)} entries contains a number"
        return without if names else "the folder is empty"
    shown = ", ".join(f"{pattern!r} ({count})" for pattern, count in found[:SHOWN])
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return (
        f"its files are named {shown}{more}, with * for a number. Give the pattern of the frames, "
        f"e.g. {found[0][0]!r}: data.frame_pattern in a config, --pattern in a command, pattern= "
        "in Python"
    )
