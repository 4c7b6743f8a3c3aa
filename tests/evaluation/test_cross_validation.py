"""Numbers of a cross-validation against values worked out by hand."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

from ffn.evaluation.bootstrap import bootstrap_means
from ffn.evaluation.cross_validation import (
    CrossValidation,
    parse_class_groups,
    right_within,
    summarise_cross_validation,
)
from ffn.evaluation.cross_validation_table import print_cross_validation

CLASSES = ("push up", "push down", "pull up", "pull down", "rest")
LABEL = [0, 0, 1, 2, 3, 4]


def logits_of(*predicted: tuple[int, int]) -> Tensor:
    """A clip per (first, second): these classes have the largest and second-largest logit."""
    logits = torch.zeros(len(predicted), 5)
    for row, (first, second) in enumerate(predicted):
        logits[row, first], logits[row, second] = 2.0, 1.0
    return logits


# Right by class / within the pairs up and down: 1 1 0 1 0 1 / 1 1 1 1 0 -.
ONE = logits_of((0, 1), (0, 2), (2, 1), (2, 3), (2, 3), (4, 0))
# 1 0 0 1 1 0 / 1 1 0 1 1 -.
OTHER = logits_of((0, 1), (3, 0), (0, 3), (2, 0), (3, 0), (1, 0))


def example(**changes: object) -> CrossValidation:
    return CrossValidation(
        **{
            "name": "net",
            "trained_frames": (4,),
            "seeds": (0, 1),
            "classes": CLASSES,
            "paths": tuple(f"{i}.mp4" for i in range(6)),
            "label": torch.tensor(LABEL),
            "groups": ("a", "a", "b", "b", "c", "c"),
            "folds": (0, 0, 0, 0, 1, 1),
            "fingerprint": "f",
            "logits": {4: torch.stack([ONE, OTHER]), 8: torch.stack([ONE, ONE])},
            **changes,
        }
    )


def test_a_clip_counts_once_per_seed() -> None:
    summary = summarise_cross_validation(example())

    four, eight = summary["rows"]
    assert (four["frames"], eight["frames"]) == (4, 8)
    assert four["top1"]["mean"] == pytest.approx(100 * (4 + 3) / 12, abs=0.01)
    assert four["top1"]["per_seed"] == [66.6667, 50.0]
    assert four["top1"]["per_fold"] == [62.5, 50.0]  # (3 + 2) / 8 and (1 + 1) / 4
    # Per class 1, 0, 1, 0, 1 and 1/2, 0, 1, 1, 0.
    assert four["top1"]["mean_class"] == pytest.approx(100 * (3 / 5 + 2.5 / 5) / 2, abs=0.01)
    assert eight["top1"]["mean"] == 66.6667
    values = np.array([1, 0.5, 0, 1, 0.5, 0.5])[:, None]
    (expected,) = bootstrap_means(values, list("aabbcc"))
    assert four["top1"]["interval"] == pytest.approx(
        [100 * expected.low, 100 * expected.high], abs=0.01
    )
    assert summary["majority"] == 33.3333
    assert summary["classes"] == dict(zip(CLASSES, [2, 1, 1, 1, 1], strict=True))
    assert (summary["clips"], summary["groups"], summary["fold_clips"]) == (6, 3, [4, 2])
    assert summary["bootstrap"] == {
        "level": 0.95,
        "resamples": 10_000,
        "seed": 0,
        "unit": "group",
    }


def test_right_within_groups_by_hand() -> None:
    pairs = [(0, 1), (2, 3)]
    for logits, expected in (ONE, [1, 1, 1, 1, 0]), (OTHER, [1, 1, 0, 1, 1]):
        found = right_within(logits, torch.tensor(LABEL), pairs)
        np.testing.assert_array_equal(found, [*expected, np.nan])


def test_a_group_of_all_classes_is_the_accuracy() -> None:
    every = example(class_groups=(tuple(range(5)),))
    row = summarise_cross_validation(every)["rows"][0]
    assert row["class_groups"]["mean"] == row["top1"]["mean"]
    assert row["class_groups"]["interval"] == row["top1"]["interval"]


def test_class_groups_leave_out_other_classes() -> None:
    summary = summarise_cross_validation(example(class_groups=((0, 1), (2, 3))))

    found = summary["class_groups"]
    assert found["groups"] == [["push up", "push down"], ["pull up", "pull down"]]
    assert found["clips"] == 5
    assert found["majority"] == pytest.approx(100 * (2 + 1) / 5)
    assert summary["rows"][0]["class_groups"]["mean"] == pytest.approx(80)  # (4 + 4) / 10
    assert summary["rows"][0]["class_groups"]["per_fold"] == [87.5, 50.0]


def test_shuffled_frames_have_the_same_measures() -> None:
    shuffled = {4: torch.stack([OTHER, OTHER]), 8: torch.stack([ONE, ONE])}
    pairs = ((0, 1), (2, 3))

    four, eight = summarise_cross_validation(example(shuffled=shuffled, class_groups=pairs))["rows"]

    assert four["top1_shuffled"]["mean"] == 50.0
    assert four["class_groups_shuffled"]["mean"] == 80.0
    # Differences per clip and seed: 0 1 0 0 -1 1 and 0.
    assert four["order"]["mean"] == pytest.approx(100 / 12, abs=0.01)
    values = np.array([0, 0.5, 0, 0, -0.5, 0.5])[:, None]
    (expected,) = bootstrap_means(values, list("aabbcc"))
    assert four["order"]["interval"] == pytest.approx(
        [100 * expected.low, 100 * expected.high], abs=0.01
    )
    assert eight["order"] == {"mean": 0.0, "interval": [0.0, 0.0]}


def test_unreadable_clips_are_wrong_and_listed() -> None:
    logits = {4: torch.stack([ONE, ONE])}
    logits[4][:, 0] = torch.nan
    found = example(logits=logits, class_groups=((0, 1),))

    summary = summarise_cross_validation(found)

    assert summary["rows"][0]["top1"]["mean"] == 50.0
    assert summary["rows"][0]["class_groups"]["mean"] == 66.6667
    assert summary["unreadable"] == ["0.mp4"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["push up,pul up"], "no class 'pul up'; the closest is 'pull up'"),
        (["push up,pull up", "rest,push up"], "'push up' occurs 2 times; give it one group"),
        (["rest"], "'rest' is alone; a group has two classes or more"),
    ],
)
def test_unusable_class_groups_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_class_groups(texts, CLASSES)
    assert parse_class_groups(["pull up, rest", "push down,push up"], CLASSES) == ((2, 4), (1, 0))


def printed(found: CrossValidation) -> str:
    console = Console(file=io.StringIO(), width=90)
    print_cross_validation(found.name, summarise_cross_validation(found), console)
    return console.file.getvalue()


def test_the_table_has_intervals_and_what_they_are() -> None:
    text = printed(example(name="[flexible]"))

    assert "[flexible]" in text
    row = next(line for line in text.splitlines() if line.startswith("│      4"))
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "4",
        "58.3 [50.0, 75.0]",
        "55.0",
        "50.0-62.5",
        "50.0-66.7",
    ]
    words = " ".join(text.split())
    assert "6 clips of 5 classes in 3 groups, 2 folds; the largest class has 33.3 %" in words
    assert "95 %, bootstrap over groups, 10000 resamples, seed 0" in words
    assert "warning: 3 groups: with fewer than 20, the intervals are too narrow" in words
    assert "shuffled" not in text


def test_one_seed_has_no_spread_and_controls_have_a_table() -> None:
    one = example(seeds=(0,), logits={4: ONE[None]}, shuffled={4: OTHER[None]})
    text = printed(replace(one, class_groups=((0, 1), (2, 3))))

    assert "seeds" not in text
    assert "class groups, shuffled" in text
    assert "Within class groups: 5 clips; the largest class of each group has 60.0 %." in " ".join(
        text.split()
    )
