"""Draw the numbers of frames of a training step, for training at more than the trained counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class FrameCounts:
    """Draws the number of frames of each view, the same for all samples of a step.

    A draw depends on (seed, epoch, step) only: all processes and micro-batches of a step have the
    same numbers, and a resumed run continues with those of an uninterrupted one.

        >>> draw = FrameCounts({4: {2: 0.5, 3: 0.25, 4: 0.25}, 8: {8: 1.0}})
        >>> draw(epoch=0, batch=0), draw(epoch=0, batch=1)
        ({4: 2, 8: 8}, {4: 2, 8: 8})

    Args:
        probabilities: For each view, the possible numbers of frames and their probabilities.
        seed: First part of the random seed of every draw.
        batches_per_step: Micro-batches of each process in an optimizer step.

    Raises:
        ValueError: if a number is below 1, or the probabilities of a view do not sum to 1.
    """

    probabilities: Mapping[int, Mapping[int, float]]
    seed: int = 0
    batches_per_step: int = 1

    def __post_init__(self) -> None:
        for view, drawn in self.probabilities.items():
            if min(drawn, default=0) < 1:
                raise ValueError(f"view {view} has {sorted(drawn)} frames; expected at least 1")
            if min(drawn.values()) < 0 or not math.isclose(sum(drawn.values()), 1):
                raise ValueError(
                    f"the probabilities of view {view} are {dict(drawn)}; their sum must be 1"
                )

    def __call__(self, epoch: int, batch: int) -> dict[int, int]:
        """Draw the number of frames of each view.

        Args:
            epoch: Number of the epoch, from 0.
            batch: Number of the batch of this process in the epoch, from 0.
        """
        entropy = [self.seed, epoch, batch // self.batches_per_step]
        # The spawn key separates these draws from those of samples, whose seeds are lists, too.
        generator = np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=(1,)))
        return {
            view: int(generator.choice(list(drawn), p=list(drawn.values())))
            for view, drawn in sorted(self.probabilities.items())
        }
