"""Cascades: a network looks at few frames first, and at more if it is not confident.

The stages of a cascade are ascending frame counts of one network. After each stage, the logits of
all stages so far give calibrated probabilities (`ffn.evaluation.cascades.calibration`). The cascade
stops at the first stage whose largest probability reaches the threshold of the stage; the last one
always stops. A video costs the multiply-accumulates of all stages that ran.
`ffn.evaluation.cascades.fit` fits cascades.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ffn.evaluation.cascades.calibration import Calibration
from ffn.evaluation.results import Predictions


@dataclass(frozen=True)
class Answers:
    """What a cascade gives for N videos.

    Attributes:
        stage: (N,), index of the stage that answered.
        probabilities: (N, K), float64.
    """

    stage: Tensor
    probabilities: Tensor


@dataclass(frozen=True)
class Measured:
    """A cascade on videos with labels.

    Attributes:
        accuracy: in percent of all videos; one that cannot be decoded is wrong.
        gmacs: of the stages that ran, mean of the videos that can be decoded.
        frames: input frames of these stages; frames that several stages share count repeatedly.
        shares: of the videos that each stage answers, in percent.
    """

    accuracy: float
    gmacs: float
    frames: float
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Cascade:
    """Stages with their thresholds and calibrations.

    Attributes:
        stages: frame counts, ascending.
        thresholds: of all stages but the last.
        calibrations: of each stage, for the logits of the stages up to it.
    """

    stages: tuple[int, ...]
    thresholds: tuple[float, ...]
    calibrations: tuple[Calibration, ...]

    def probabilities(self, logits: Sequence[Tensor]) -> Tensor:
        """Calibrated probabilities (N, K), float64.

        Args:
            logits: (N, K) of each stage that has run, in their order.
        """
        return self.calibrations[len(logits) - 1](logits).softmax(-1)

    def stops(self, stage: int, probabilities: Tensor) -> Tensor:
        """For which videos (N,) the cascade stops at a stage, by its probabilities (N, K)."""
        confidence = probabilities.amax(-1)
        if stage == len(self.stages) - 1:
            return torch.ones_like(confidence, dtype=torch.bool)
        return confidence >= self.thresholds[stage]

    def run(self, logits: Mapping[int, Tensor]) -> Answers:
        """Answer videos from stored logits (N, K) of each stage.

        Raises:
            KeyError: a stage has no logits.
        """
        given = [logits[count] for count in self.stages]
        stage = torch.full((len(given[0]),), -1)
        answer = torch.empty(given[0].shape, dtype=torch.float64)
        for number in range(len(self.stages)):
            probabilities = self.probabilities(given[: number + 1])
            now = (stage < 0) & self.stops(number, probabilities)
            stage[now], answer[now] = number, probabilities[now]
        return Answers(stage, answer)

    def measure(self, predictions: Predictions, gmacs: Mapping[int, float]) -> Measured:
        """Accuracy and cost on videos with labels.

        Args:
            predictions: of the network.
            gmacs: of a video at each count.

        Raises:
            ValueError: as `check_predictions`.
        """
        check_predictions(predictions, self.stages)
        seen = decoded(predictions)
        answers = self.run(seen.logits)
        right = answers.probabilities.argmax(1) == seen.label
        answered = torch.bincount(answers.stage, minlength=len(self.stages)).double()
        shares = tuple((100 * answered / len(seen.label)).tolist())
        return Measured(
            100 * int(right.sum()) / len(predictions.label),
            mean_cost(self.stages, shares, gmacs),
            mean_cost(self.stages, shares, {count: count for count in self.stages}),
            shares,
        )


def mean_cost(stages: Sequence[int], shares: Sequence[float], costs: Mapping[int, float]) -> float:
    """Mean over videos of the sum over the stages that ran.

    Args:
        stages: of a cascade.
        shares: of the videos that each stage answers, in percent.
        costs: of a video at each stage.
    """
    totals = itertools.accumulate(costs[count] for count in stages)
    return sum(a * b for a, b in zip(shares, totals, strict=True)) / 100


def check_predictions(predictions: Predictions, counts: Sequence[int]) -> None:
    """Check that a cascade of these counts can be fitted to, or run on, predictions.

    Raises:
        ValueError: videos with several labels, no video that can be decoded, or a count that was
            not tested.
    """
    if predictions.multi_label:
        raise ValueError(
            "the predictions are for videos with several labels; a cascade needs one label per "
            "video, whose probability is its confidence"
        )
    if not predictions.ok.any():
        raise ValueError("the predictions have no video that can be decoded")
    missing = [count for count in counts if count not in predictions.logits]
    if missing:
        raise ValueError(
            f"the predictions have no logits at {listed(missing)} frames; they have "
            f"{listed(sorted(predictions.logits))}"
        )


def decoded(predictions: Predictions) -> Predictions:
    """The predictions for the videos that can be decoded."""
    return select(predictions, predictions.ok)


def select(predictions: Predictions, chosen: Tensor) -> Predictions:
    """The predictions for some videos, by a mask (N,)."""
    paths = tuple(itertools.compress(predictions.paths, chosen.tolist()))
    logits = {count: x[chosen] for count, x in predictions.logits.items()}
    return replace(
        predictions,
        paths=paths,
        label=predictions.label[chosen],
        ok=predictions.ok[chosen],
        logits=logits,
    )


def raw_accuracy(predictions: Predictions, count: int) -> float:
    """Accuracy at a count without calibration, in percent of all videos."""
    answers, _ = predictions.answers(count)
    return 100 * float((answers == predictions.label).double().mean())


def listed(counts: Sequence[int]) -> str:
    """Counts as text, e.g. "4, 8, 16"."""
    return ", ".join(map(str, counts))
