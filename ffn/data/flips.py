"""Which classes a mirror exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def swap_pairs(pairs: Sequence[Sequence[int | str]], classes: Sequence[str]) -> list[list[int]]:
    """Turn pairs of class names or indices into pairs of indices.

    Args:
        pairs: As `[["left", "right"], [4, 5]]`.
        classes: All class names.

    Returns:
        The same pairs as indices.

    Raises:
        ValueError: if a name or index is not a class, or pairs do not exchange one for one.
    """
    indices = [[_class_index(one, classes) for one in pair] for pair in pairs]
    involution(indices)
    return indices


def _class_index(one: int | str, classes: Sequence[str]) -> int:
    if isinstance(one, str):
        if one not in classes:
            close = get_close_matches(one, classes, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {len(classes)} classes"
            raise ValueError(f"flip_pairs names {one!r}, which is not a class; {hint}")
        return list(classes).index(one)
    if not 0 <= one < len(classes):
        raise ValueError(f"flip_pairs holds class {one}; expected 0 … {len(classes) - 1}")
    return one


def involution(pairs: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return the mapping that exchanges each pair; applying it twice changes nothing.

    Args:
        pairs: Of class indices.

    Raises:
        ValueError: if pairs do not exchange one for one.
    """
    mapping: dict[int, int] = {}
    for pair in pairs:
        if len(pair) != 2 or pair[0] == pair[1]:
            raise ValueError(f"flip_pairs holds {list(pair)}; expected two different classes")
        for one, other in (tuple(pair), tuple(pair)[::-1]):
            if one in mapping:
                raise ValueError(
                    f"flip_pairs names class {one} twice, with {mapping[one]} and {other}; "
                    "a class can be exchanged with one other only"
                )
            mapping[one] = other
    return mapping
