"""Benchmark of reading a list of videos: all views from one decode, or a decode per view."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import torch

from ffn.benchmarks.timing import Comparison, Variant, compare, interleave
from ffn.data import Preprocessing, Record, VideoDataset

CPU = torch.device("cpu")


def compare_reading(
    records: Sequence[Record],
    frames: Sequence[int],
    *,
    size: int,
    rounds: int,
) -> Comparison:
    """Compare the CPU time of all views from one decode, nested or not, with a decode per view.

    Raises:
        ValueError: fewer than two frame counts.
        VideoError: a video cannot be decoded.
    """
    views = sorted(set(frames))
    if len(views) < 2:
        raise ValueError(f"frames is {views}; give two or more frame counts, e.g. 4 8 16")

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
    variants = [Variant(name, seconds[name]) for name in calls]
    return compare(f"{title}; CPU time", len(records), each, variants)


def _samples(datasets: Sequence[VideoDataset]) -> Callable[[], None]:
    """A function that makes every sample once, with new random frames in each call."""
    epochs = itertools.count()

    def run() -> None:
        epoch = next(epochs)
        for index in range(len(datasets[0])):
            for dataset in datasets:
                dataset[epoch, index]

    return run
