"""Benchmark of reading videos: views from one decode, video formats, data loader workers."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ffn.benchmarks.formats import VideoFormat, converted, generated_videos, listed_videos
from ffn.benchmarks.timing import Comparison, Variant, compare, interleave
from ffn.data import (
    Preprocessing,
    Record,
    VideoDataset,
    make_loader,
    segment_center,
    segment_random,
)
from ffn.data.crops import draw_crop

CPU = torch.device("cpu")
REFERENCE = "store, JPEG"  # the other formats are compared with it
BATCH_SIZE = 2  # of the data loader


def compare_reading(
    frames: Sequence[int],
    *,
    sizes: Sequence[int],
    annotations: Path | None,
    root: Path | None,
    videos: int,
    gops: Sequence[int],
    video_frames: int,
    workers: Sequence[int],
    rounds: int,
) -> Iterator[Comparison]:
    """Compare ways to read training samples from videos.

    For each size: views from one decode, nested or not, against one decode per view; formats of
    the same videos; and data loaders with several worker processes.

    Args:
        frames: the views, two frame counts or more.
        sizes: heights and widths of a clip, pixels. Stores and generated videos are 256/224 of it.
        annotations: list of videos; None generates videos.
        root: folder of the paths in the list.
        videos: number of generated videos, or maximum number of listed ones.
        gops: frames per group of pictures of generated videos.
        video_frames: of generated videos.
        workers: numbers of data loader processes; empty leaves the loaders out.
        rounds: timed runs of each variant.

    Raises:
        ValueError: an argument is out of range, or a video cannot be decoded.
    """
    views = sorted(set(frames))
    if len(views) < 2:
        raise ValueError(f"--frames is {views[0]}; give two or more frame counts, e.g. 4 8 16")
    if root is not None and annotations is None:
        raise ValueError(f"--root {root} needs --annotations, the list of videos in it")
    for size in sizes:
        preprocessing = Preprocessing(crop=size, resize=round(size * 256 / 224))
        with tempfile.TemporaryDirectory() as folder:
            if annotations is not None:
                originals = [listed_videos(annotations, root, videos)]
            else:
                originals = [
                    generated_videos(
                        Path(folder, f"gop{gop}"),
                        number=videos,
                        short_side=preprocessing.resize,
                        frames=video_frames,
                        gop=gop,
                    )
                    for gop in gops
                ]
            _check_number(len(originals[0].records), workers)
            for one in originals:
                yield compare_views(one, views, preprocessing, rounds)
            formats = [*originals, *converted(originals[0], Path(folder), preprocessing.resize)]
            yield from compare_formats(formats, views[len(views) // 2], preprocessing, rounds)
            for number in workers:
                yield compare_loaders(formats, views, preprocessing, number, rounds)


def compare_views(
    videos: VideoFormat, views: Sequence[int], preprocessing: Preprocessing, rounds: int
) -> Comparison:
    """Compare one decode for all views, nested or not, with one decode per view."""
    together = make_dataset(videos, views, preprocessing)
    nested = make_dataset(videos, views, preprocessing, nested=True)
    single = [make_dataset(videos, [view], preprocessing) for view in views]
    calls = {
        "one decode": _samples([together]),
        "one decode, nested": _samples([nested]),
        "a decode per view": _samples(single),
    }
    variants = _cpu_times(calls, items=len(videos.records), rounds=rounds)
    each = "a decode per view"
    pairs = [
        ("one decode", each),
        ("one decode, nested", each),
        ("one decode, nested", "one decode"),
    ]
    shown, count = ", ".join(map(str, views)), len(videos.records)
    title = f"views {shown} of {preprocessing.crop} px from {count} videos, {videos.name}"
    return compare(f"{title}; CPU time", variants, pairs)


def compare_formats(
    formats: Sequence[VideoFormat], frames: int, preprocessing: Preprocessing, rounds: int
) -> list[Comparison]:
    """Compare each format with the JPEG store: reading frames alone, and whole samples."""
    by_name = {one.name: one for one in formats}
    reads = {one.name: _reads(one, frames) for one in formats}
    reads["memory copy"] = _copies(by_name["store, raw"], frames)
    samples = {one.name: _samples([make_dataset(one, [frames], preprocessing)]) for one in formats}
    samples["JPEG files, PIL"] = _pil_samples(by_name["JPEG files"], frames, preprocessing)

    count = len(formats[0].records)
    sizes = ", ".join(f"{one.name} {one.mib:.3g}" for one in formats)
    comparisons = []
    for what, calls in (("frames alone", reads), ("whole samples", samples)):
        variants = _cpu_times(calls, items=count, rounds=rounds)
        title = f"{frames} frames of {count} videos for {preprocessing.crop} px, {what}; CPU time"
        title += f"; MiB per video: {sizes}"
        comparisons.append(compare(title, variants, _pairs(calls)))
    return comparisons


def compare_loaders(
    formats: Sequence[VideoFormat],
    views: Sequence[int],
    preprocessing: Preprocessing,
    workers: int,
    rounds: int,
) -> Comparison:
    """Compare the formats in batches of a data loader with worker processes."""

    def batches(videos: VideoFormat) -> Callable[[], None]:
        dataset = make_dataset(videos, views, preprocessing)
        loader = make_loader(dataset, batch_size=BATCH_SIZE, workers=workers, train=True)
        epochs = itertools.count()

        def run() -> None:
            loader.sampler.set_epoch(next(epochs))
            for _ in loader:
                pass

        return run

    calls = {one.name: batches(one) for one in formats}
    seconds = interleave(calls, rounds=rounds, device=CPU, warmup=1)
    count = len(formats[0].records) // BATCH_SIZE * BATCH_SIZE
    variants = [Variant(name, count, seconds[name]) for name in calls]
    shown = ", ".join(map(str, views))
    title = f"views {shown} of {preprocessing.crop} px from {count} videos through {workers} "
    title += "workers; wall-clock time"
    return compare(title, variants, _pairs(calls))


def make_dataset(
    videos: VideoFormat,
    views: Sequence[int],
    preprocessing: Preprocessing,
    *,
    nested: bool = False,
) -> VideoDataset:
    """Training samples of videos in one format."""
    return VideoDataset(
        videos.records,
        views=views,
        preprocessing=preprocessing,
        train=True,
        nested=nested,
        source=videos.open,
    )


def _check_number(videos: int, workers: Sequence[int]) -> None:
    if workers and videos < BATCH_SIZE:
        raise ValueError(
            f"number of videos is {videos}; data loaders need {BATCH_SIZE} or more. Use more "
            "videos, or --workers without a number"
        )


def _cpu_times(calls: dict[str, Callable[[], None]], *, items: int, rounds: int) -> list[Variant]:
    seconds = interleave(calls, rounds=rounds, device=CPU, warmup=1, clock=time.process_time)
    return [Variant(name, items, seconds[name]) for name in calls]


def _pairs(calls: dict[str, Callable[[], None]]) -> list[tuple[str, str]]:
    return [(REFERENCE, name) for name in calls if name != REFERENCE]


def _samples(datasets: Sequence[VideoDataset]) -> Callable[[], None]:
    """A function that makes every sample once, with new random frames in each call."""
    epochs = itertools.count()

    def run() -> None:
        epoch = next(epochs)
        for index in range(len(datasets[0])):
            for dataset in datasets:
                dataset[epoch, index]

    return run


def _reads(videos: VideoFormat, frames: int) -> Callable[[], None]:
    """A function that reads random frames of every video."""
    rounds = itertools.count()

    def run() -> None:
        number = next(rounds)
        for index, record in enumerate(videos.records):
            video = videos.open(record)
            usable = range(len(video))
            if record.start is not None or record.end is not None:
                usable = video.between(record.start, record.end)
            video.read([usable[i] for i in _indices(len(usable), frames, number, index)])

    return run


def _copies(raw: VideoFormat, frames: int) -> Callable[[], None]:
    """A function that copies the same number of frames within memory: the lower bound."""
    rounds = itertools.count()
    video = raw.open(raw.records[0])
    held = video.read(segment_center(len(video), min(64, len(video))))
    copy = torch.empty_like(held[:1].expand(frames, -1, -1, -1)).contiguous()

    def run() -> None:
        number = next(rounds)
        for index in range(len(raw.records)):
            chosen = torch.tensor(_indices(len(held), frames, number, index))
            torch.index_select(held, 0, chosen, out=copy)

    return run


def _pil_samples(
    folders: VideoFormat, frames: int, preprocessing: Preprocessing
) -> Callable[[], None]:
    """A function that makes samples as the repositories of TSM and FFN do: PIL images, floats."""
    rounds = itertools.count()
    side = preprocessing.crop
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (preprocessing.mean, preprocessing.std))

    def load(path: str) -> Image.Image:
        with Image.open(path) as image:
            return image.convert("RGB")

    def sample(record: Record, number: int, index: int) -> Tensor:
        count = len(folders.open(record))
        chosen = _indices(count, frames, number, index)
        images = [load(f"{record.path}/{i + 1:05d}.jpg") for i in chosen]
        width, height = images[0].size
        top, left, h, w = draw_crop(height, width, np.random.default_rng([number, index]))
        box = (left, top, left + w, top + h)
        images = [
            image.crop(box).resize((side, side), Image.Resampling.BILINEAR) for image in images
        ]
        x = torch.from_numpy(np.concatenate([np.asarray(image) for image in images], axis=2))
        x = x.permute(2, 0, 1).contiguous().float().div(255)  # (T * C, H, W)
        return x.unflatten(0, (frames, 3)).sub_(mean).div_(std)

    def run() -> None:
        number = next(rounds)
        for index, record in enumerate(folders.records):
            sample(record, number, index)

    return run


def _indices(count: int, frames: int, number: int, index: int) -> list[int]:
    return segment_random(count, frames, np.random.default_rng([number, index]))
