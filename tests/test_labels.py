"""Losses and probabilities of both kinds of labels, against formulas in float64 numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ffn.engine.tasks import distillation
from ffn.labels import MultiLabel, SingleLabel, label_kind

RANDOM = np.random.default_rng(0)
LOGITS, OTHERS = RANDOM.normal(0, 3, size=(2, 5, 4))
TARGETS = RANDOM.uniform(size=(5, 4)).round(1)
WEIGHTS = np.array([0.5, 1.0, 2.0, 7.0])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def bernoulli_kl(teacher: np.ndarray, student: np.ndarray) -> float:
    """KL of each video and class, one by one; their mean."""
    found = []
    for one, other in zip(sigmoid(teacher).flat, sigmoid(student).flat, strict=True):
        present = one * (np.log(one) - np.log(other))
        absent = (1 - one) * (np.log(1 - one) - np.log(1 - other))
        found.append(present + absent)
    return sum(found) / len(found)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_binary_cross_entropy_is_the_mean_over_videos_and_classes(
    weights: np.ndarray | None,
) -> None:
    factor, p = 1 if weights is None else weights, sigmoid(LOGITS)
    each = -(factor * TARGETS * np.log(p) + (1 - TARGETS) * np.log(1 - p))
    given = None if weights is None else torch.tensor(weights)

    loss = MultiLabel.loss(torch.tensor(LOGITS), torch.tensor(TARGETS), given)

    assert loss.dtype == torch.float64
    assert loss.item() == pytest.approx(each.sum() / 20, rel=1e-14)


def test_half_precision_logits_are_computed_in_that_of_the_label() -> None:
    logits, label = torch.tensor(LOGITS).bfloat16(), torch.tensor(TARGETS).float()
    expected = MultiLabel.loss(logits.double(), label.double()).item()
    assert MultiLabel.loss(logits, label).item() == pytest.approx(expected, rel=1e-6)


def test_distillation_of_several_labels() -> None:
    student = torch.tensor(OTHERS, requires_grad=True)
    teacher = MultiLabel.log_probabilities(torch.tensor(LOGITS))

    loss = distillation(student, teacher)
    loss.backward()

    assert loss.item() == pytest.approx(bernoulli_kl(LOGITS, OTHERS), rel=1e-13)
    # d KL_c / d logit_c = q_c - p_c, as that of the binary cross-entropy with the target p_c.
    expected = (sigmoid(OTHERS) - sigmoid(LOGITS)) / 20
    np.testing.assert_allclose(student.grad.numpy(), expected, rtol=1e-12)
    assert distillation(torch.tensor(LOGITS), teacher).item() == pytest.approx(0, abs=1e-15)


def test_distillation_of_sure_answers_is_finite() -> None:
    sure = torch.tensor([[200.0, -200.0]])
    loss = distillation(-sure, MultiLabel.log_probabilities(sure))
    assert loss.item() == pytest.approx(200)


def test_temperature_of_a_task_of_ones_own() -> None:
    """The task in CONTRIBUTING.md softens log-probabilities of either kind in the same way."""
    for kind in (SingleLabel, MultiLabel):
        teacher = kind.log_probabilities(torch.tensor(LOGITS))
        softened = (teacher / 2).log_softmax(-1)
        torch.testing.assert_close(softened, kind.log_probabilities(torch.tensor(LOGITS) / 2))


def test_one_label_is_distilled_over_the_classes() -> None:
    p, q = (np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in (LOGITS, OTHERS))
    expected = (p * np.log(p / q)).sum(1)
    teacher = SingleLabel.log_probabilities(torch.tensor(LOGITS))
    weights = torch.tensor([1.0, 2.0, 0.5, 0.0, 3.0], dtype=torch.float64)

    assert distillation(torch.tensor(OTHERS), teacher).item() == pytest.approx(expected.mean())
    weighted = distillation(torch.tensor(OTHERS), teacher, weights)
    assert weighted.item() == pytest.approx((weights.numpy() * expected).mean())


@pytest.mark.parametrize("kind", [SingleLabel, MultiLabel])
def test_mean_of_probabilities(kind: type) -> None:
    """The probabilities of the mean logits are the mean probabilities."""
    logits = torch.tensor(RANDOM.normal(0, 4, size=(3, 6, 4)))
    expected = kind.probabilities(logits).mean(1)
    torch.testing.assert_close(kind.probabilities(kind.mean(logits, 1)), expected)


def test_label_smoothing() -> None:
    label = torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    torch.testing.assert_close(MultiLabel.smooth(label, 0.2), torch.tensor([[0.9, 0.1, 0.9, 0.1]]))
    torch.testing.assert_close(
        SingleLabel.smooth(label / 2, 0.2), torch.tensor([[0.45, 0.05, 0.45, 0.05]])
    )


def test_kinds() -> None:
    assert (label_kind(False), label_kind(True)) == (SingleLabel, MultiLabel)
    probabilities = MultiLabel.probabilities(torch.tensor(LOGITS))
    np.testing.assert_allclose(probabilities.numpy(), sigmoid(LOGITS))
