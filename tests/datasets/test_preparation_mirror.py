"""Classes that a horizontal flip exchanges."""

from __future__ import annotations

from ffn.data import swap_pairs
from ffn.datasets import mirror_pairs, mirror_problems


def test_something_something() -> None:
    names = [
        "Plugging something into something but pulling it right out as you remove your hand",
        "Pulling something from left to right",
        "Pulling something from right to left",
        "Pulling two ends of something so that it separates into two pieces",
        "Pushing something from left to right",
        "Pushing something from right to left",
        "Putting something upright on the table",
        "Turning the camera downwards while filming something",
        "Turning the camera left while filming something",
        "Turning the camera right while filming something",
        "Turning the camera upwards while filming something",
        "Twisting (wringing) something wet until water comes out",
    ]

    pairs = mirror_pairs(names)

    assert pairs == [(names[1], names[2]), (names[4], names[5]), (names[8], names[9])]
    assert mirror_problems(names) == []
    assert swap_pairs(pairs, names) == [[1, 2], [4, 5], [8, 9]]


def test_spellings() -> None:
    for one, other in (
        ("SwipeLeft", "SwipeRight"),
        ("swipe_left", "swipe_right"),
        ("turn clockwise", "turn anti-clockwise"),
        ("left hand then right foot", "right hand then left foot"),
    ):
        assert mirror_pairs([other, "jump", one]) == [(other, one)]
    for name in ("upright", "eating leftovers", "bright light", "right away"):
        assert mirror_pairs([name]) == mirror_problems([name]) == []


def test_what_has_no_single_mirror_image() -> None:
    assert mirror_problems(["left hook", "jump"]) == ["left hook"]
    two = ["turn clockwise", "turn counterclockwise", "turn anticlockwise"]
    assert mirror_pairs(two) == []
    assert mirror_problems(two) == two
