"""Early exit: a network looks at few frames first, and at more only if it is not confident.

The stages are ascending frame counts of one network. A video is answered at the first stage whose
largest probability (softmax of the logits at this count) reaches the threshold of the stage; the
last stage always answers. The video costs the multiply-accumulates of all stages that ran.
Thresholds are fitted to videos that the network was not trained on.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.table import Table
from torch import Tensor

from ffn.evaluation.results import Predictions
from ffn.files import write_text

FORMAT = 1  # of the file
STAGES = 3  # maximum number of stages
COUNTS = 6  # maximum number of counts to choose the stages from
LEVELS = 48  # thresholds that are tried per stage


@dataclass(frozen=True)
class EarlyExit:
    """Stages and thresholds, and what they give on the videos of the fit.

    Attributes:
        stages: frame counts, ascending.
        thresholds: of all stages but the last.
        accuracy: in percent.
        gmacs: giga multiply-accumulates of a video, mean.
        network: name of the network.
        weights_sha256: of its tensors, see :func:`ffn.zoo.state_sha256`.
    """

    stages: tuple[int, ...]
    thresholds: tuple[float, ...]
    accuracy: float
    gmacs: float
    network: str = ""
    weights_sha256: str | None = None

    def stops(self, stage: int, probabilities: Tensor) -> Tensor:
        """For which videos (N,) a stage answers, by its probabilities (N, K).

        Args:
            stage: index of the stage.
            probabilities: of the videos at its frame count.
        """
        confidence = probabilities.amax(-1)
        if stage == len(self.stages) - 1:
            return torch.ones_like(confidence, dtype=torch.bool)
        return confidence >= self.thresholds[stage]

    def answer(self, logits: Mapping[int, Tensor]) -> tuple[Tensor, Tensor]:
        """Answer videos from stored logits (N, K) per frame count.

        Returns:
            The index of the stage that answers (N,), and its class (N,).
        """
        given = torch.stack([logits[count] for count in self.stages])  # (S, N, K)
        probabilities = given.double().softmax(-1)
        stops = torch.stack([self.stops(i, x) for i, x in enumerate(probabilities)])
        stage = stops.int().argmax(0)  # the first that stops
        classes = given.argmax(-1).gather(0, stage[None])[0]
        return stage, classes

    def save(self, path: Path) -> None:
        """Write a JSON file; an existing file is replaced."""
        write_text(path, json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> EarlyExit:
        """Read the file of :meth:`save`.

        Raises:
            OSError: it cannot be read.
            ValueError: it is not such a file.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("format") != FORMAT:
                raise ValueError("another format")
            stages, thresholds = (tuple(content.pop(key)) for key in ("stages", "thresholds"))
            if not stages or len(thresholds) != len(stages) - 1 or [*stages] != sorted({*stages}):
                raise ValueError(f"stages {stages}, thresholds {thresholds}")
            return cls(stages, thresholds, **content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} is not a file of early exit ({error}); write one with ffn early_exit"
            ) from error

    def check_network(self, weights_sha256: str, name: str) -> None:
        """Check that the thresholds were fitted to a network.

        Raises:
            ValueError: they belong to another one.
        """
        if weights_sha256 != self.weights_sha256:
            raise ValueError(
                f"the early exit was fitted to {self.network}, not to the weights of {name}; fit "
                f"one with ffn early_exit --weights {name}"
            )


def fit_early_exit(
    predictions: Predictions, gmacs: Mapping[int, float], budget: float | None = None
) -> EarlyExit:
    """Find stages and thresholds on videos with labels.

    They have the accuracy of the largest count at the lowest cost, or the best accuracy of a
    budget. All sequences of up to `STAGES` counts are tried, each with a grid of thresholds.

    Args:
        predictions: of the network for videos that it was not trained on.
        gmacs: of a video at each count to choose the stages from, at most `COUNTS`.
        budget: mean cost of a video, in GMACs.

    Raises:
        ValueError: videos with several labels, none that can be decoded, a count that was not
            tested, too many counts, or a budget below that of the smallest count.
    """
    counts = sorted(gmacs)
    if predictions.multi_label:
        raise ValueError("the videos have several labels; early exit needs one label per video")
    if len(counts) > COUNTS:
        raise ValueError(f"frames has {len(counts)} counts, {counts}; give at most {COUNTS}")
    if missing := [count for count in counts if count not in predictions.logits]:
        raise ValueError(f"no predictions at {missing} frames; test at these counts")
    if not predictions.ok.any():
        raise ValueError("no video of the predictions can be decoded")
    seen = select(predictions, predictions.ok)
    found = [
        candidate
        for length in range(1, min(STAGES, len(counts)) + 1)
        for stages in itertools.combinations(counts, length)
        for candidate in _candidates(stages, seen, gmacs)
    ]
    if budget is None:
        alone = next(one for one in found if one.stages == (counts[-1],))
        good = [one for one in found if one.accuracy >= alone.accuracy]
        return min(good, key=lambda one: (one.gmacs, -one.accuracy))
    if budget < gmacs[counts[0]]:
        raise ValueError(f"the budget is {budget:g} GMACs; give {gmacs[counts[0]]} or more")
    affordable = [one for one in found if one.gmacs <= budget * (1 + 1e-9)]
    return max(affordable, key=lambda one: (one.accuracy, -one.gmacs))


def _candidates(
    stages: tuple[int, ...], seen: Predictions, gmacs: Mapping[int, float]
) -> list[EarlyExit]:
    """The given stages, with all combinations of a grid of thresholds."""
    answers = [seen.answers(count) for count in stages]
    right = [(classes == seen.label).double() for classes, _ in answers]  # (N,) each
    levels = torch.linspace(0, 1, LEVELS + 2, dtype=torch.float64)[1:-1]
    # From the last stage: score and cost of each video from a stage on, (combinations, N).
    score = right[-1][None]
    cost = torch.full_like(score, gmacs[stages[-1]])
    grid = torch.empty(1, 0, dtype=torch.float64)  # thresholds of the later stages
    for stage in reversed(range(len(stages) - 1)):
        confidence = answers[stage][1]
        thresholds = confidence.quantile(levels).unique()
        stop = (confidence >= thresholds[:, None]).double()[:, None]  # (G, 1, N)
        score = (stop * right[stage] + (1 - stop) * score).flatten(0, 1)
        cost = (gmacs[stages[stage]] + (1 - stop) * cost).flatten(0, 1)
        first = thresholds.repeat_interleave(len(grid))[:, None]
        grid = torch.cat([first, grid.repeat(len(thresholds), 1)], 1)
    columns = (grid.tolist(), (100 * score.mean(1)).tolist(), cost.mean(1).tolist())
    return [EarlyExit(stages, tuple(row), *both) for row, *both in zip(*columns, strict=True)]


def held_out(
    predictions: Predictions, gmacs: Mapping[int, float], budget: float | None = None
) -> tuple[float, float]:
    """Accuracy in percent, and mean GMACs, of thresholds on videos that they were not fitted to.

    They are fitted to a random half of the videos and tested on the other half, both ways.
    Arguments are those of :func:`fit_early_exit`.
    """
    seen = select(predictions, predictions.ok)
    order = torch.randperm(len(seen.label), generator=torch.Generator().manual_seed(0))
    halves = [select(seen, part) for part in order.tensor_split(2)]
    right, cost = 0, 0.0
    for fitted, tested in (halves, halves[::-1]):
        exits = fit_early_exit(fitted, gmacs, budget)
        stage, classes = exits.answer(tested.logits)
        totals = torch.tensor([*itertools.accumulate(gmacs[n] for n in exits.stages)])
        right += int((classes == tested.label).sum())
        cost += float(totals.double()[stage].sum())
    return 100 * right / len(seen.label), cost / len(seen.label)


def early_exit_table(
    predictions: Predictions,
    gmacs: Mapping[int, float],
    exits: EarlyExit,
    tested: tuple[float, float],
) -> Table:
    """Accuracy and cost of each count alone, of the fit, and of held-out videos, for the console.

    ``predictions`` and ``gmacs`` are those of the fit, ``tested`` the result of :func:`held_out`.
    """
    seen = select(predictions, predictions.ok)
    table = Table(title=f"early exit, {len(seen.label)} videos")
    for column in ("frames", "top-1", "GMACs"):
        table.add_column(column, justify="right")
    for count in sorted(gmacs):
        top1 = 100 * float((seen.answers(count)[0] == seen.label).double().mean())
        table.add_row(str(count), f"{top1:.2f}", f"{gmacs[count]:.4g}")
    table.add_section()
    stages = ", ".join(map(str, exits.stages))
    for videos, accuracy, cost in (
        ("videos of the fit", exits.accuracy, exits.gmacs),
        ("held-out videos", *tested),
    ):
        table.add_row(f"early exit {stages}, {videos}", f"{accuracy:.2f}", f"{cost:.4g}")
    return table


def select(predictions: Predictions, chosen: Tensor) -> Predictions:
    """The predictions for some videos, by a mask or by indices."""
    indices = torch.arange(len(predictions.label))[chosen]
    return replace(
        predictions,
        paths=tuple(predictions.paths[i] for i in indices.tolist()),
        label=predictions.label[indices],
        ok=predictions.ok[indices],
        logits={count: x[indices] for count, x in predictions.logits.items()},
    )
