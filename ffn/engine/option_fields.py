"""Declare an option: default, meaning, and the range of its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import Any

INT_LIMIT = 2**31


@dataclass(frozen=True)
class Range:
    """The accepted numbers of an option: finite, and within the bounds that are not None.

    >>> str(Range(least=0, below=1)), str(Range(above=0))
    ('from 0 to below 1', 'above 0')
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def __str__(self) -> str:
        low = f"above {self.above}" if self.least is None else f"from {self.least}"
        high = f"below {self.below}" if self.most is None else f"{self.most}"
        if self.most is None and self.below is None:
            return low.replace("from", "at least") if self != Range() else ""
        if self.least is None:
            return f"{low} and {'at most ' * (self.most is not None)}{high}"
        return f"{low} to {high}"

    def refusal(self, number: float) -> str | None:
        """What a number must be, if it is not accepted."""
        if not math.isfinite(number):
            return f"finite{f', {self}' if str(self) else ''}"
        if self.most is None and abs(number) >= INT_LIMIT and isinstance(number, int):
            return f"below {INT_LIMIT:,}"
        accepted = (
            (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
            and (self.below is None or number < self.below)
        )
        return None if accepted else str(self)


def option(
    default: Any,
    meaning: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> Any:
    """Dataclass field of an option.

    Args:
        default: its default value.
        meaning: a line for ``--help`` and messages, without the range.
        least: smallest accepted number; of a list, each number counts.
        above: accepted numbers are larger.
        most: largest accepted number.
        below: accepted numbers are smaller.
    """
    metadata = {"help": meaning, "range": Range(least, above, most, below)}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def numbers_in(value: Any) -> Iterator[float]:
    """The numbers in a value of an option, which may be a list or a mapping."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from numbers_in(item)
    elif isinstance(value, dict):
        yield from numbers_in([*value.values()])
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value
