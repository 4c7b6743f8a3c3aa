"""Comparison of cross-validated networks: paired differences, tables, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ffn.evaluation.comparison import compare, comparison_table, save_comparison_figure
from ffn.evaluation.cross_validation import CrossValidation

GROUPS, SIZE = 40, 3


def network(name: str, right: np.ndarray, **changes: object) -> CrossValidation:
    """A network with two classes and frame counts 4 and 8, right at 4 where given, always at 8."""
    label = torch.arange(GROUPS * SIZE) % 2

    def logits(right: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(torch.where(right, label, 1 - label), 2).float()

    clips = GROUPS * SIZE
    found = CrossValidation(
        name=name,
        trained_frames=(4,),
        seeds=(0,),
        classes=("in", "out"),
        paths=tuple(f"{i}.mp4" for i in range(clips)),
        label=label,
        groups=tuple(f"scene {i // SIZE}" for i in range(clips)),
        folds=tuple(i // SIZE % 2 for i in range(clips)),
        fingerprint="same",
        logits={
            4: logits(torch.from_numpy(right))[None],
            8: logits(torch.ones(clips, dtype=torch.bool))[None],
        },
    )
    return replace(found, **changes)


@pytest.fixture
def right() -> np.ndarray:
    """Of each group all clips or none: a wide interval."""
    return np.repeat(np.random.default_rng(0).random(GROUPS) < 0.5, SIZE)


def test_differences_are_paired(right: np.ndarray) -> None:
    """The other network differs in one of the three clips of each group."""
    changed = right.copy()
    changed[::SIZE] = ~right[::SIZE]
    plus = np.where(right[::SIZE], -1 / SIZE, 1 / SIZE).mean()

    found = compare([network("one", right), network("other", changed), network("same", right)])

    four, eight = found["differences"]["top1"]["other"]
    assert four["mean"] == pytest.approx(100 * plus, abs=0.01)
    assert eight == {"frames": 8, "mean": 0.0, "interval": [0.0, 0.0]}
    same = found["differences"]["top1"]["same"][0]
    assert same["interval"] == [0.0, 0.0]
    low, high = found["networks"]["one"]["rows"][0]["top1"]["interval"]
    assert high - low > 20


def test_a_constant_gain_has_no_width() -> None:
    none, third = np.zeros(GROUPS * SIZE, bool), np.arange(GROUPS * SIZE) % SIZE == 0
    found = compare([network("one", none), network("other", third)])
    difference = found["differences"]["top1"]["other"][0]
    assert difference == {"frames": 4, "mean": 33.3333, "interval": [33.3333, 33.3333]}


def test_the_table_has_a_line_per_network(right: np.ndarray) -> None:
    other = network("plain", ~right, trained_frames=(8,), seeds=(0, 1))
    other = replace(other, logits={8: other.logits[8].repeat(2, 1, 1)})

    text = comparison_table(compare([network("flexible", right), other]))

    lines = text.splitlines()
    at = lines.index("Top-1 accuracy (%), mean over seeds, interval over groups.")
    assert lines[at + 2] == "| network | seeds | 4 | 8 |"
    assert lines[at + 4].startswith("| flexible | 1 | **")
    assert lines[at + 4].endswith("]** | 100.0 [100.0, 100.0] |")
    assert lines[at + 5] == "| plain | 2 |  | **100.0 [100.0, 100.0]** |"
    assert lines[-1] == "| plain |  | **+0.0 [+0.0, +0.0]** |"
    assert "above 0: better than `flexible`" in text
    assert "120 clips of 2 classes in 40 groups, 2 folds" in lines[0]


def test_controls_are_compared_if_all_networks_have_them(right: np.ndarray) -> None:
    one, other = network("one", right), network("other", right)
    first, second = (replace(x, shuffled=x.logits, class_groups=((0, 1),)) for x in (one, other))
    every = ["top1", "top1_shuffled", "class_groups", "class_groups_shuffled"]

    assert list(compare([first, second])["differences"]) == every
    assert (
        list(compare([first, replace(second, class_groups=((1, 0),))])["differences"]) == every[:2]
    )
    assert list(compare([first, other])["differences"]) == ["top1"]
    assert "clips with shuffled frames" in comparison_table(compare([first, second]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"folds": (0,) * 119 + (1,)}, "a and b have different folds .*2 folds; .*2 folds"),
        ({"groups": ("g",) * 119 + ("h",)}, "different groups"),
        ({"paths": ("x.mp4",) * 120}, "different clips"),
        ({"label": torch.zeros(120, dtype=torch.long)}, "different labels"),
        ({"classes": ("out", "in")}, "different class names"),
        ({}, "different times of the clips"),
    ],
)
def test_other_folds_or_clips_are_refused(right: np.ndarray, changes: dict, message: str) -> None:
    other = network("b", right, fingerprint="other", **changes)
    with pytest.raises(ValueError, match=f"{message}.*the same --annotations, --where, --group"):
        compare([network("a", right), other])


def test_networks_without_a_common_frame_count_are_refused(right: np.ndarray) -> None:
    one, other = network("a", right), network("b", right)
    one, other = (replace(x, logits={t: x.logits[t]}) for x, t in ((one, 4), (other, 8)))
    with pytest.raises(ValueError, match=r"a and b share no frame count: \[4\] and \[8\]"):
        compare([one, other])


@pytest.mark.parametrize("number", [1, 3])
def test_the_figure_is_written(right: np.ndarray, tmp_path: Path, number: int) -> None:
    networks = [network(f"net {i}", np.roll(right, i)) for i in range(number)]
    path = save_comparison_figure(compare(networks), tmp_path / "figure.png")
    assert path.stat().st_size > 5000
