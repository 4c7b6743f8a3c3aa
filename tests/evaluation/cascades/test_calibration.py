"""Calibrations, against their formula written out and against other minimisers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from cascade_predictions import predictions

from ffn.evaluation.cascades.calibration import Calibration, cross_fit, fit_calibration

KEPT = predictions()
LOGITS = [KEPT.logits[n] for n in (2, 8)]


def by_hand(logits, scales, matrices, bias) -> np.ndarray:
    """z = Σ_j (s_j l_j + l_j W_j) + b, element by element."""
    videos, classes = logits[0].shape
    found = np.zeros((videos, classes))
    for i in range(videos):
        for k in range(classes):
            found[i, k] = bias[k]
            for j, one in enumerate(logits):
                x = np.asarray(one[i], dtype=float)
                x = x - math.log(sum(math.exp(value) for value in x))
                found[i, k] += scales[j] * x[k]
                found[i, k] += sum(x[m] * matrices[j][m][k] for m in range(classes))
    return found


def loss_by_hand(logits, label, penalty, scales, matrices, bias) -> float:
    z = by_hand(logits, scales, matrices, bias)
    likelihood = z[np.arange(len(z)), label] - np.log(np.exp(z).sum(1))
    weight = 0.0 if penalty == math.inf else penalty
    return -likelihood.mean() + weight * ((matrices**2).sum() + (bias**2).sum())


def test_calibrated_logits_are_those_of_the_formula() -> None:
    random = torch.Generator().manual_seed(1)
    sizes = ((2,), (2, 3, 3), (3,))
    values = [torch.randn(size, generator=random, dtype=torch.float64) for size in sizes]

    found = Calibration(*values, 1.0)([x[:5] for x in LOGITS])

    expected = by_hand([x[:5] for x in LOGITS], *(value.numpy() for value in values))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("penalty", [math.inf, 0.01])
def test_the_fit_is_a_minimum(penalty: float) -> None:
    """The problem is convex: the loss rises in every direction."""
    small = [x[:40] for x in LOGITS]
    label = KEPT.label[:40]
    fitted = fit_calibration(small, label, penalty)
    values = [getattr(fitted, name).numpy() for name in ("scales", "matrices", "bias")]
    least = loss_by_hand(small, label.numpy(), penalty, *values)

    random = np.random.default_rng(0)
    for _ in range(6):
        moved = [value + 0.02 * random.standard_normal(value.shape) for value in values]
        if penalty == math.inf:
            moved[1:] = values[1:]
        assert loss_by_hand(small, label.numpy(), penalty, *moved) > least - 1e-7
    if penalty == math.inf:
        assert not values[1].any()
        assert not values[2].any()


def test_one_count_without_matrices_is_temperature_scaling() -> None:
    fitted = fit_calibration(LOGITS[:1], KEPT.label, math.inf)

    x = LOGITS[0].double().numpy()
    best, likelihood = 0.0, -math.inf
    for scale in np.linspace(0.05, 2, 2000):
        z = scale * x
        found = (z[np.arange(len(z)), KEPT.label] - np.log(np.exp(z).sum(1))).mean()
        if found > likelihood:
            best, likelihood = scale, found
    assert float(fitted.scales[0]) == pytest.approx(best, abs=2e-3)


def test_out_of_fold_probabilities_do_not_see_the_label_of_their_video() -> None:
    changed = KEPT.label.clone()
    changed[7] = (changed[7] + 1) % 3
    first, second = (cross_fit(LOGITS, y, penalties=(0.1,)) for y in (KEPT.label, changed))

    assert torch.equal(first.probabilities[7], second.probabilities[7])
    assert not torch.equal(first.probabilities, second.probabilities)


def test_the_penalty_with_the_largest_likelihood_is_chosen() -> None:
    single = {p: cross_fit(LOGITS, KEPT.label, penalties=(p,)) for p in (math.inf, 0.1, 1e-3)}
    found = cross_fit(LOGITS, KEPT.label, penalties=(math.inf, 0.1, 1e-3))

    best = max(single, key=lambda p: single[p].likelihood)
    assert found.calibration.penalty == best
    torch.testing.assert_close(
        found.probabilities, single[best].probabilities, rtol=1e-3, atol=1e-3
    )
    own = found.probabilities[torch.arange(120), KEPT.label].log().mean()
    assert found.likelihood == pytest.approx(float(own), abs=1e-5)


def test_errors_name_numbers() -> None:
    with pytest.raises(ValueError, match=r"9 videos are too few.*give 10 or more"):
        cross_fit([x[:9] for x in LOGITS], KEPT.label[:9])
    fitted = fit_calibration(LOGITS, KEPT.label, math.inf)
    with pytest.raises(ValueError, match="1 counts and 3 classes; the calibration is for 2 counts"):
        fitted(LOGITS[:1])
