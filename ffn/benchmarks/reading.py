"""Benchmark of reading a list of videos: views from one decode, and data loader workers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from ffn.benchmarks.timing import Comparison, Variant, compare, interleave
from ffn.data import Preprocessing, Record, VideoDataset, make_loader

CPU = torch.device("cpu")
BATCH_SIZE = 2  # of the data loader


def compare_reading(
    records: Sequence[Record],
    frames: Sequence[int],
    *,
    size: int,
    workers: Sequence[int],
    rounds: int,
) -> Iterator[Comparison]:
    """Compare ways to read training samples from videos.

    The first comparison is of CPU time: all views from one decode, nested or not, against one
    decode per view. The second is of wall-clock time: data loaders with several worker processes.

    Args:
        records: the videos, two or more.
        frames: the views, two frame counts or more.
        size: height and width of a clip, pixels.
        workers: numbers of data loader processes; empty leaves the loaders out.
        rounds: timed runs of each variant.

    Raises:
        ValueError: too few videos or frame counts.
        VideoError: a video cannot be decoded.
    """
    views = sorted(set(frames))
    if len(views) < 2:
        raise ValueError(f"frames is {views}; give two or more frame counts, e.g. 4 8 16")
    if len(records) < BATCH_SIZE:
        raise ValueError(f"number of videos is {len(records)}; give {BATCH_SIZE} or more")

    def dataset(views: Sequence[int], nested: bool = False) -> VideoDataset:
        preprocessing = Preprocessing(crop=size, resize=round(size * 256 / 224))
        return VideoDataset(
            records, views=views, preprocessing=preprocessing, train=True, nested=nested
        )

    title = f"views {', '.join(map(str, views))} of {size} px from {len(records)} videos"
    each = "a decode per view"
    calls = {
        "one decode": _samples([dataset(views)]),
        "one decode, nested": _samples([dataset(views, nested=True)]),
        each: _samples([dataset([view]) for view in views]),
    }
    seconds = interleave(calls, rounds=rounds, device=CPU, warmup=1, clock=time.process_time)
    variants = [Variant(name, len(records), seconds[name]) for name in calls]
    pairs = [("one decode", each), ("one decode, nested", each)]
    yield compare(f"{title}; CPU time", variants, pairs)

    if not workers:
        return
    calls = {f"{number} workers": _batches(dataset(views), number) for number in workers}
    seconds = interleave(calls, rounds=rounds, device=CPU, warmup=1)
    used = len(records) // BATCH_SIZE * BATCH_SIZE
    variants = [Variant(name, used, seconds[name]) for name in calls]
    pairs = [(name, variants[0].name) for name in list(calls)[1:]]
    yield compare(f"{title}; wall-clock time", variants, pairs)


def _samples(datasets: Sequence[VideoDataset]) -> Callable[[], None]:
    """A function that makes every sample once, with new random frames in each call."""
    epochs = itertools.count()

    def run() -> None:
        epoch = next(epochs)
        for index in range(len(datasets[0])):
            for dataset in datasets:
                dataset[epoch, index]

    return run


def _batches(dataset: VideoDataset, workers: int) -> Callable[[], None]:
    """A function that reads every batch of an epoch."""
    loader = make_loader(dataset, batch_size=BATCH_SIZE, workers=workers, train=True)
    epochs = itertools.count()

    def run() -> None:
        loader.sampler.set_epoch(next(epochs))
        for _ in loader:
            pass

    return run
