"""Find the classes that a horizontal flip exchanges, by their names.

A flipped video of "Pushing something from left to right" belongs to "Pushing something from right
to left". A flip also exchanges clockwise and counterclockwise, but not up, down, towards and away.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

_MIRRORED = {"left": "right", "right": "left", "cw": "ccw", "ccw": "cw"}
# Words end at punctuation, blanks, underscores, and capitals inside a name (SwipeLeft).
_WORD = r"(?:(?<![A-Za-z])(?:{any})|(?<=[a-z])(?:{capital}))(?![a-z])"
_KINDS = {
    "ccw": ("(?:counter|anti)[-_ ]?clockwise", "(?:Counter|Anti)[-_ ]?[Cc]lockwise"),
    "cw": ("clockwise", "Clockwise"),
    "left": ("left", "Left"),
    # "right" in "pulling it right out" is not a side.
    "right": ("right(?![-_ ](?:out|away|after|now|angle))", "Right"),
}
_EXPRESSIONS = [
    (kind, re.compile(_WORD.format(any=f"(?i:{any_case})", capital=capital)))
    for kind, (any_case, capital) in _KINDS.items()
]


def mirror_pairs(classes: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of classes that a horizontal flip exchanges.

    Args:
        classes: All class names.

    Returns:
        Each pair once, in the order of `classes`, for `data.flip_pairs` of a config.

    Example:
        >>> mirror_pairs(["Swiping Left", "Swiping Right", "Thumb Up"])
        [('Swiping Left', 'Swiping Right')]
    """
    partners = _partners(classes)
    order = {name: position for position, name in enumerate(classes)}
    return [
        (name, partner)
        for name, partner in partners.items()
        if partner is not None and order[name] < order[partner]
    ]


def mirror_problems(classes: Sequence[str]) -> list[str]:
    """Classes with a side in their name whose mirror image is not a class.

    A flipped video of such a class belongs to no class. Do not flip a data set with such classes.
    """
    return [name for name, partner in _partners(classes).items() if partner is None]


def _partners(classes: Sequence[str]) -> dict[str, str | None]:
    """The mirror image, or None, of each class with a side in its name."""
    by_tokens = defaultdict(list)
    for name in classes:
        by_tokens[_tokens(name)].append(name)
    partners = {}
    for name in classes:
        tokens = _tokens(name)
        mirrored = re.sub(r"\{(\w+)\}", lambda found: f"{{{_MIRRORED[found[1]]}}}", tokens)
        if mirrored != tokens:
            images = by_tokens.get(mirrored, [])
            partners[name] = images[0] if len(images) == len(by_tokens[tokens]) == 1 else None
    return partners


def _tokens(name: str) -> str:
    """A name in lower case with sides replaced by tokens: "swipe {left}"."""
    name = name.replace("{", "(").replace("}", ")")
    for kind, expression in _EXPRESSIONS:
        name = expression.sub(f"{{{kind}}}", name)
    return name.lower()
