"""Both kinds of labels; `tests/engine/test_tasks.py` compares their losses with the formulas."""

from __future__ import annotations

import pytest
import torch

from ffn.engine.tasks import distillation
from ffn.labels import MultiLabel, SingleLabel

LOGITS, OTHERS = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0)).double() * 3


def test_half_precision_logits_are_computed_in_that_of_the_label() -> None:
    logits, label = LOGITS.bfloat16(), torch.rand(5, 4).round()
    expected = MultiLabel.loss(logits.double(), label.double()).item()
    assert MultiLabel.loss(logits, label).item() == pytest.approx(expected, rel=1e-6)


def test_distillation_of_several_labels() -> None:
    student = OTHERS.clone().requires_grad_()
    distillation(student, MultiLabel.log_probabilities(LOGITS)).backward()
    # d KL_c / d logit_c = q_c - p_c, as that of the binary cross-entropy with the target p_c.
    torch.testing.assert_close(student.grad, (OTHERS.sigmoid() - LOGITS.sigmoid()) / 20)

    sure = torch.tensor([[200.0, -200.0]])
    assert distillation(-sure, MultiLabel.log_probabilities(sure)).item() == pytest.approx(200)


@pytest.mark.parametrize("kind", [SingleLabel, MultiLabel])
def test_means_and_temperatures_of_probabilities(kind: type) -> None:
    logits = 4 * torch.randn(3, 6, 4).double()
    expected = kind.probabilities(logits).mean(1)
    torch.testing.assert_close(kind.probabilities(kind.mean(logits, 1)), expected)
    # The task in CONTRIBUTING.md softens log-probabilities of either kind in the same way.
    softened = (kind.log_probabilities(logits) / 2).log_softmax(-1)
    torch.testing.assert_close(softened, kind.log_probabilities(logits / 2))


def test_label_smoothing() -> None:
    label = torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    torch.testing.assert_close(MultiLabel.smooth(label, 0.2), torch.tensor([[0.9, 0.1, 0.9, 0.1]]))
    torch.testing.assert_close(
        SingleLabel.smooth(label / 2, 0.2), torch.tensor([[0.45, 0.05, 0.45, 0.05]])
    )
