"""Calibrated probabilities from the logits of a network at several frame counts.

With l_j the log-softmax of the logits at count j, the calibrated logits after k counts are

    z_k = Σ_{j≤k} (s_j l_j + l_j W_j) + b

with a number s_j, a matrix W_j (K, K) and a vector b (K): matrix scaling (Guo et al., ICML 2017,
§4.2) of the logits of all counts that have run. They minimise the cross-entropy plus
λ (Σ |W_j|² + |b|²). With λ = ∞ only the numbers s_j are left; for one count this is temperature
scaling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

PENALTIES = (math.inf, 1.0, 1e-1, 1e-2, 1e-3)  # values of λ, descending
FOLDS = 5
STEPS = 200  # maximum number of iterations of L-BFGS


@dataclass(frozen=True)
class Calibration:
    """Turns the logits of a network at n frame counts into calibrated ones.

    Attributes:
        scales: s (n,), float64.
        matrices: W (n, K, K).
        bias: b (K,).
        penalty: λ.
    """

    scales: Tensor
    matrices: Tensor
    bias: Tensor
    penalty: float

    def __call__(self, logits: Sequence[Tensor]) -> Tensor:
        """Calibrated logits (N, K), float64.

        Args:
            logits: (N, K) of each count, in the order of the calibration.

        Raises:
            ValueError: another number of counts or classes.
        """
        expected = (len(self.scales), len(self.bias))
        found = (len(logits), logits[0].shape[-1] if len(logits) else 0)
        if found != expected:
            raise ValueError(
                f"logits of {found[0]} counts and {found[1]} classes; the calibration is for "
                f"{expected[0]} counts and {expected[1]} classes"
            )
        return _calibrate(_log_softmax(logits), self.scales, self.matrices, self.bias)


class CrossFit(NamedTuple):
    """A calibration, and what calibrations of other videos give each of its videos.

    Attributes:
        calibration: fitted to all videos.
        probabilities: out of fold (N, K): of each video by a calibration that has not seen it.
        likelihood: mean log-probability of the labels, out of fold.
    """

    calibration: Calibration
    probabilities: Tensor
    likelihood: float


def fit_calibration(
    logits: Sequence[Tensor],
    label: Tensor,
    penalty: float,
    *,
    start: Calibration | None = None,
) -> Calibration:
    """Fit a calibration to videos.

    Args:
        logits: (N, K) of each count; finite.
        label: (N,), class indices.
        penalty: λ, above 0; ``inf`` for scales alone.
        start: where the optimization starts; the problem is convex, so this changes the time only.
    """
    return _fit(_log_softmax(logits), label, penalty, start)


def cross_fit(
    logits: Sequence[Tensor],
    label: Tensor,
    *,
    penalties: Sequence[float] = PENALTIES,
    folds: int = FOLDS,
) -> CrossFit:
    """Fit a calibration whose penalty has the largest likelihood in a cross-validation.

    Args:
        logits: (N, K) of each count; finite.
        label: (N,), class indices.
        penalties: values of λ to choose from.
        folds: number of parts of the videos; each is predicted by a calibration of the others.

    Raises:
        ValueError: fewer than two videos per fold.
    """
    videos = len(label)
    if videos < 2 * folds:
        raise ValueError(
            f"{videos} videos are too few for a calibration; give {2 * folds} or more, better "
            "hundreds"
        )
    x = _log_softmax(logits)
    fold = torch.randperm(videos, generator=torch.Generator().manual_seed(0)) % folds
    found = {penalty: torch.empty(videos, x.shape[2], dtype=x.dtype) for penalty in penalties}
    latest: dict[float, Calibration] = {}
    for held_out in (fold == number for number in range(folds)):
        fitted = None
        for penalty in sorted(penalties, reverse=True):
            fitted = _fit(x[:, ~held_out], label[~held_out], penalty, fitted)
            found[penalty][held_out] = _apply(fitted, x[:, held_out])
            latest[penalty] = fitted
    likelihood = {p: -float(cross_entropy(z, label)) for p, z in found.items()}
    best = max(likelihood, key=likelihood.__getitem__)
    return CrossFit(
        _fit(x, label, best, latest[best]), found[best].softmax(1), round(likelihood[best], 6)
    )


def _log_softmax(logits: Sequence[Tensor]) -> Tensor:
    """(n, N, K), float64."""
    return torch.stack([one.double().log_softmax(-1) for one in logits])


def _apply(calibration: Calibration, x: Tensor) -> Tensor:
    return _calibrate(x, calibration.scales, calibration.matrices, calibration.bias)


def _calibrate(x: Tensor, scales: Tensor, matrices: Tensor, bias: Tensor) -> Tensor:
    """Calibrated logits (N, K) of log-probabilities (n, N, K)."""
    return (scales[:, None, None] * x).sum(0) + torch.bmm(x, matrices).sum(0) + bias


def _fit(x: Tensor, label: Tensor, penalty: float, start: Calibration | None) -> Calibration:
    count, _, classes = x.shape
    if start is None:  # the largest count alone, not calibrated
        scales = torch.zeros(count, dtype=x.dtype)
        scales[-1] = 1
        matrices = torch.zeros(count, classes, classes, dtype=x.dtype)
        start = Calibration(scales, matrices, torch.zeros(classes, dtype=x.dtype), penalty)
    scales, matrices, bias = (
        tensor.clone() for tensor in (start.scales, start.matrices, start.bias)
    )
    fitted = [scales] if penalty == math.inf else [scales, matrices, bias]
    for tensor in fitted:
        tensor.requires_grad_()
    optimizer = torch.optim.LBFGS(
        fitted,
        max_iter=STEPS,
        history_size=20,
        tolerance_grad=1e-5,
        tolerance_change=1e-8,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = cross_entropy(_calibrate(x, scales, matrices, bias), label)
        if penalty != math.inf:
            value = value + penalty * (matrices.square().sum() + bias.square().sum())
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    return Calibration(scales.detach(), matrices.detach(), bias.detach(), penalty)
