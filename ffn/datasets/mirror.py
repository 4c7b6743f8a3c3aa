"""Which classes a mirror exchanges, read from their names.

A film of "Pushing something from left to right", flipped, is one of "Pushing something from right
to left". A mirror also turns clockwise into counterclockwise. Up, down, towards and away stay.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

_MIRRORED = {"left": "right", "right": "left", "cw": "ccw", "ccw": "cw"}
# A word is bounded by signs, blanks, underscores, or a capital inside a name: SwipeLeft.
_WORD = r"(?:(?<![A-Za-z])(?:{any})|(?<=[a-z])(?:{capital}))(?![a-z])"
_KINDS = {
    "ccw": ("(?:counter|anti)[-_ ]?clockwise", "(?:Counter|Anti)[-_ ]?[Cc]lockwise"),
    "cw": ("clockwise", "Clockwise"),
    "left": ("left", "Left"),
    # "pulling it right out" names no side.
    "right": ("right(?![-_ ](?:out|away|after|now|angle))", "Right"),
}
_FORMS = [
    (kind, re.compile(_WORD.format(any=f"(?i:{any_case})", capital=capital)))
    for kind, (any_case, capital) in _KINDS.items()
]


def mirror_pairs(classes: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of classes that a horizontal flip exchanges.

    Args:
        classes: All class names.

    Returns:
        Each pair once, in the order of `classes`; for `data.flip_pairs` of a config.

    Example:
        >>> mirror_pairs(["Swiping Left", "Swiping Right", "Thumb Up"])
        [('Swiping Left', 'Swiping Right')]
    """
    partners = _partners(classes)
    order = {name: place for place, name in enumerate(classes)}
    return [
        (name, partner)
        for name, partner in partners.items()
        if partner is not None and order[name] < order[partner]
    ]


def mirror_problems(classes: Sequence[str]) -> list[str]:
    """Classes whose name has a side but whose mirror image is not a class.

    A flipped film of such a class belongs to none: a data set that has one should not be flipped.
    """
    return [name for name, partner in _partners(classes).items() if partner is None]


def _partners(classes: Sequence[str]) -> dict[str, str | None]:
    """The mirror image, or None, of each class that is not its own."""
    spelt = defaultdict(list)
    for name in classes:
        spelt[_tokens(name)].append(name)
    partners = {}
    for name in classes:
        tokens = _tokens(name)
        mirrored = re.sub(r"\{(\w+)\}", lambda found: f"{{{_MIRRORED[found[1]]}}}", tokens)
        if mirrored != tokens:
            there = spelt.get(mirrored, [])
            partners[name] = there[0] if len(there) == len(spelt[tokens]) == 1 else None
    return partners


def _tokens(name: str) -> str:
    """A name in lower case with its sides as tokens: "Swipe {left}"."""
    name = name.replace("{", "(").replace("}", ")")
    for kind, form in _FORMS:
        name = form.sub(f"{{{kind}}}", name)
    return name.lower()
