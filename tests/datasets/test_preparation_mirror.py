"""Classes that a horizontal flip exchanges."""

from __future__ import annotations

from ffn.data import swap_pairs
from ffn.datasets import mirror_pairs, mirror_problems


def test_pairs() -> None:
    names = [
        "Plugging something into something but pulling it right out as you remove your hand",
        "Pulling something from left to right",
        "Pulling something from right to left",
        "Pushing something from right to left",
        "Pushing something from left to right",
        "Putting something upright on the table",
        "SwipeLeft",
        "SwipeRight",
        "turn clockwise",
        "turn anti-clockwise",
        "left hand then right foot",
        "right hand then left foot",
        "right away",
    ]

    pairs = mirror_pairs(names)

    numbers = [[1, 2], [3, 4], [6, 7], [8, 9], [10, 11]]
    assert pairs == [(names[one], names[other]) for one, other in numbers]
    assert mirror_problems(names) == []
    assert swap_pairs(pairs, names) == numbers


def test_what_has_no_single_mirror_image() -> None:
    assert mirror_problems(["left hook", "jump"]) == ["left hook"]
    two = ["turn clockwise", "turn counterclockwise", "turn anticlockwise"]
    assert mirror_pairs(two) == []
    assert mirror_problems(two) == two
