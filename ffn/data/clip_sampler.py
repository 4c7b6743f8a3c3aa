"""The order in which the ranks load the videos of an epoch, and the numbers of their frames."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch.utils.data import Sampler


class ClipSampler(Sampler[tuple]):
    """Sampler of one rank; yields keys `(epoch, index, copy)` of `VideoDataset`.

    A batch contains batch_size / repeats videos, each `repeats` times with different draws
    (repeated augmentation, Hoffer et al. 2020). All videos come as copy 0, then all as copy 1, …,
    so that neighbours in a batch are different videos. An epoch is one pass over the videos, with
    `repeats` times as many samples.

    All ranks use the same permutation of an epoch, drawn from (seed, epoch). Rank r takes the
    positions p with p mod world_size = r. The batches b of all ranks together are thus batch b of
    one process with the same global batch size.

    Args:
        size: Number of videos.
        shuffle: True for training: a new order every epoch, without the videos that do not fill a
            batch on every rank. False for evaluation: rank r takes r, r + world_size, …; each
            sample is taken exactly once over all ranks, so that ranks may differ by one sample.
        groups: Training only. A name for each video; those of one name are neighbours in the order.
        seed: Seed of the permutations.
        rank: Rank of this process.
        world_size: Number of ranks.
        batch_size: Samples per batch and rank, copies included.
        repeats: Copies of each video in its batch; training only.
        frame_counts: Training only. A function of (epoch, batch) that returns the number of frames
            of each view in a batch, as `FrameCounts`; the keys are then `(epoch, index, copy,
            numbers)`.

    Raises:
        ValueError: if a number is outside its range, or the videos do not fill one batch.
    """

    def __init__(
        self,
        size: int,
        *,
        shuffle: bool,
        groups: Sequence[str] | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        batch_size: int = 1,
        repeats: int = 1,
        frame_counts: Callable[[int, int], Mapping[int, int]] | None = None,
    ) -> None:
        if min(size, batch_size, repeats) < 1 or batch_size % repeats or not 0 <= rank < world_size:
            raise ValueError(
                f"size {size}, batch_size {batch_size}, repeats {repeats}, rank {rank} of "
                f"{world_size}; expected at least 1, batches of whole repeats, and an existing rank"
            )
        if shuffle and size < batch_size // repeats * world_size:
            raise ValueError(
                f"{size} videos do not fill one batch of {batch_size // repeats} on each of "
                f"{world_size} ranks; use a smaller batch"
            )
        if not shuffle and (repeats > 1 or frame_counts is not None):
            raise ValueError("repeats and frame_counts are used in training; set shuffle=True")
        self.size, self.shuffle, self.seed = size, shuffle, seed
        self.rank, self.world_size = rank, world_size
        self.batch_size, self.repeats, self.frame_counts = batch_size, repeats, frame_counts
        self.groups = None if groups is None else np.unique(groups, return_inverse=True)[1]
        self.epoch = self.skip_batches = 0

    def set_epoch(self, epoch: int, skip_batches: int = 0) -> None:
        """Set the epoch of the next iteration, from 0.

        It starts after the batches of this rank to skip, to resume an interrupted epoch.
        """
        self.epoch, self.skip_batches = epoch, skip_batches

    def __len__(self) -> int:
        """Remaining samples of this rank in this epoch."""
        return self.repeats * len(self._indices())

    def __iter__(self) -> Iterator[tuple]:
        indices, videos = self._indices(), self.batch_size // self.repeats
        for batch, first in enumerate(range(0, len(indices), videos), self.skip_batches):
            numbers = () if self.frame_counts is None else (self.frame_counts(self.epoch, batch),)
            for copy in range(self.repeats):
                for index in indices[first : first + videos]:
                    yield (self.epoch, index, copy, *numbers)

    def _indices(self) -> list[int]:
        """Indices of the remaining videos of this rank."""
        videos, order = self.batch_size // self.repeats, np.arange(self.size)
        if self.shuffle:
            entropy = np.random.SeedSequence([self.seed, self.epoch])
            generator = np.random.default_rng(entropy)
            generator.shuffle(order)
            if self.groups is not None:
                place = generator.permutation(self.size)[self.groups[order]]
                order = order[place.argsort(kind="stable")]
            share = videos * self.world_size
            order = order[: self.size // share * share]
        return order[self.rank :: self.world_size][self.skip_batches * videos :].tolist()


@dataclass(frozen=True)
class FrameCounts:
    """Draws the number of frames of each view, to train at more than the trained counts.

    All samples of a step have the same numbers.
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
            shares = drawn.values()
            if min(drawn, default=0) < 1 or min(shares) < 0 or not math.isclose(sum(shares), 1):
                raise ValueError(
                    f"view {view} has numbers of frames with probabilities {dict(drawn)}; expected "
                    "at least 1 frame, and the sum 1"
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
