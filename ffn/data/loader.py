"""Which rank sees which video when, and how samples become batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from ffn.data.dataset import VideoDataset
from ffn.data.decoding import VideoError


class ClipSampler(Sampler[tuple[int, ...]]):
    """Keys `(epoch, index)` of one rank, in the order in which it sees them.

    With repeats the keys are `(epoch, index, copy)`: a batch holds batch_size / repeats videos,
    each `repeats` times with other draws (repeated augmentation, Hoffer et al. 2020), first all of
    them as copy 0, then all as copy 1, …: neighbours in a batch are different videos. An epoch is
    still one pass over the videos; it has `repeats` times as many samples.

    All ranks share one permutation per epoch, from (seed, epoch). Position p of it goes to rank
    p mod world_size, so that batch b of all ranks together holds what batch b of one process with
    the same global batch would hold.

    Args:
        size: Number of videos.
        shuffle: True for training: a new order every epoch, and the same number of samples on every
            rank. False for evaluation: rank r takes r, r + world_size, …, each sample exactly once
            over all ranks, so that ranks may differ by one sample.
        seed: Of the permutations.
        rank: This process.
        world_size: Number of processes.
        batch_size: Samples per batch and rank, copies included.
        repeats: Times that a video stands in its batch; training only.
        drop_last: Training only. True leaves out what does not fill a batch on every rank. False
            keeps the smaller last batch; if the ranks cannot share it evenly, the first few samples
            of the epoch come again (at most world_size - 1).

    Raises:
        ValueError: if a number is outside its range, or less than one batch would remain.
    """

    def __init__(
        self,
        size: int,
        *,
        shuffle: bool,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        batch_size: int = 1,
        repeats: int = 1,
        drop_last: bool = False,
    ) -> None:
        if size < 1 or batch_size < 1 or not 0 <= rank < world_size:
            raise ValueError(
                f"size {size}, batch_size {batch_size}, rank {rank} of {world_size}; "
                "expected size and batch_size of at least 1 and 0 <= rank < world_size"
            )
        if repeats < 1 or batch_size % repeats or (repeats > 1 and not drop_last):
            raise ValueError(
                f"repeats is {repeats} with batch_size {batch_size}, drop_last {drop_last}; "
                "expected a divisor of batch_size, and drop_last in training if it is above 1"
            )
        if drop_last and not shuffle:
            raise ValueError("drop_last would leave samples out of an evaluation; set it False")
        if drop_last and size < batch_size // repeats * world_size:
            raise ValueError(
                f"{size} videos do not fill one batch of {batch_size // repeats} on each of "
                f"{world_size} ranks; use a smaller batch, or drop_last=False"
            )
        self.size, self.shuffle, self.seed = size, shuffle, seed
        self.rank, self.world_size = rank, world_size
        self.batch_size, self.repeats, self.drop_last = batch_size, repeats, drop_last
        self.epoch = self.skip_batches = 0

    def set_epoch(self, epoch: int, skip_batches: int = 0) -> None:
        """Choose the epoch that the next iteration runs through.

        Args:
            epoch: Number of the epoch, from 0.
            skip_batches: Batches of this rank to leave out at its start, to continue an epoch that
                was interrupted after so many.
        """
        self.epoch, self.skip_batches = epoch, skip_batches

    def __len__(self) -> int:
        """Samples that remain for this rank in this epoch."""
        return self.repeats * len(self._indices())

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        indices = self._indices()
        if self.repeats == 1:
            return ((self.epoch, index) for index in indices)
        videos = self.batch_size // self.repeats
        return (
            (self.epoch, index, copy)
            for first in range(0, len(indices), videos)
            for copy in range(self.repeats)
            for index in indices[first : first + videos]
        )

    def _indices(self) -> list[int]:
        order = np.arange(self.size)
        if self.shuffle:
            entropy = np.random.SeedSequence([self.seed, self.epoch])
            np.random.default_rng(entropy).shuffle(order)
            videos = self.batch_size // self.repeats
            share = videos * self.world_size if self.drop_last else self.world_size
            whole = self.size // share if self.drop_last else -(-self.size // share)
            order = np.resize(order, whole * share)
        done = self.skip_batches * (self.batch_size // self.repeats)
        return order[self.rank :: self.world_size][done:].tolist()


def make_loader(
    dataset: VideoDataset,
    *,
    batch_size: int,
    workers: int = 0,
    train: bool = False,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    repeats: int = 1,
    drop_last: bool = True,
) -> DataLoader:
    """Load batches of a dataset; `loader.sampler.set_epoch(epoch)` starts an epoch.

    The loader draws from a generator of its own: making or iterating it leaves torch's global
    random state as it was. Workers live as long as the loader.

    Args:
        dataset: The samples.
        batch_size: Samples per batch and rank.
        workers: Processes that decode; 0 decodes in this one.
        train: Shuffled and equal for all ranks, or in order and each sample once.
        seed: Of the order.
        rank: This process.
        world_size: Number of processes.
        repeats: See `ClipSampler`; training only.
        drop_last: See `ClipSampler`; training only.

    Returns:
        Batches as `collate_train` or `collate_eval` make them.
    """
    sampler = ClipSampler(
        len(dataset),
        shuffle=train,
        seed=seed,
        rank=rank,
        world_size=world_size,
        batch_size=batch_size,
        repeats=repeats,
        drop_last=train and drop_last,
    )
    return DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=workers,
        collate_fn=collate_train if train else collate_eval,
        generator=torch.Generator().manual_seed(seed),
        persistent_workers=workers > 0,
        pin_memory=torch.cuda.is_available(),
        multiprocessing_context=_start_method() if workers > 0 else None,
    )


def collate_eval(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Stack samples; those that could not be read stay, as zeros with `ok` False.

    Args:
        samples: Items of `VideoDataset`.

    Returns:
        `clips`: for each view uint8 (B, C, T, H, W), or (B * V, C, T, H, W) if a protocol gives
        each video V clips and crops, those of the first video first; `label` and `index`: (B,)
        int64; `ok`: (B,) bool; `skipped`: the reasons of the videos that could not be read.
    """
    return {
        "clips": {
            view: torch.stack([s["clips"][view] for s in samples]).flatten(0, -5)
            for view in samples[0]["clips"]
        },
        "label": torch.tensor([s["label"] for s in samples]),
        "index": torch.tensor([s["index"] for s in samples]),
        "ok": torch.tensor([s["ok"] for s in samples]),
        "skipped": [s["error"] for s in samples if not s["ok"]],
    }


def collate_train(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Stack the samples that could be read; `skipped` names the others.

    Args:
        samples: Items of `VideoDataset`.

    Returns:
        As `collate_eval`, with a smaller B if videos were skipped.

    Raises:
        VideoError: if no video of the batch could be read.
    """
    good = [s for s in samples if s["ok"]]
    skipped = [s["error"] for s in samples if not s["ok"]]
    if not good:
        raise VideoError(skipped[0], f"nor could any other of the {len(skipped)} of its batch")
    return collate_eval(good) | {"skipped": skipped}


def _start_method() -> str | None:
    """How workers start: a fork after CUDA has started would break CUDA in the child."""
    if "fork" not in torch.multiprocessing.get_all_start_methods():
        return None
    return "forkserver" if torch.cuda.is_initialized() else "fork"
