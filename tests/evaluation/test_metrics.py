from __future__ import annotations

import numpy as np
import pytest
import torch
from evaluation_toys import metrics_by_hand

from ffn.evaluation.metrics import NOT_FINITE, UNREADABLE, accuracy, label_ranks


@pytest.mark.parametrize("classes", [1, 3, 5, 6, 40])
@pytest.mark.parametrize("ties", [False, True])
def test_metrics_equal_a_loop(classes: int, ties: bool) -> None:
    random = np.random.default_rng(classes)
    logits = random.normal(size=(200, classes))
    if ties:
        logits = logits.round()
    labels = random.integers(0, max(1, classes - 1), 200)  # the last class does not occur
    failed = {0, 7, 111}

    ranks = label_ranks(torch.tensor(logits), torch.tensor(labels))
    ranks[list(failed)] = UNREADABLE

    expected = metrics_by_hand(logits, labels, failed)
    assert accuracy(ranks, torch.tensor(labels)) == pytest.approx(expected, abs=1e-12)


def test_logits_that_are_not_finite_are_marked_and_count_as_wrong() -> None:
    for value in (torch.nan, torch.inf, -torch.inf):
        logits = torch.tensor([[1.0, 2.0], [value, 0.0], [0.0, 1.0]])
        assert label_ranks(logits, torch.tensor([1, 1, 0])).tolist() == [0, NOT_FINITE, 1]
    found = accuracy(torch.tensor([NOT_FINITE, 0, 4, 5]), torch.tensor([0, 0, 1, 1]))

    assert found == {"top1": 25, "top5": 50, "mean_class": 25}


@pytest.mark.parametrize("label", [[0, 3], [-1, 2]])
def test_a_label_outside_the_classes_is_an_error(label: list[int]) -> None:
    with pytest.raises(ValueError, match=r"labels are .* the model has classes 0 to 2"):
        label_ranks(torch.zeros(2, 3), torch.tensor(label))
