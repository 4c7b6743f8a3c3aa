"""What ``tools/benchmark.py data`` compares: ways to get a training sample from a video."""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:  # imported where it is used: --help is quick
    from ffn.benchmarks.timing import Comparison
    from ffn.data import Preprocessing, Record, Video

Source = Callable[["Record"], "Video"]


@dataclass(frozen=True)
class _Form:
    """The same videos in one form.

    Attributes:
        name: In tables.
        records: The videos.
        open: How one is opened.
        mib: Mean size of a video.
    """

    name: str
    records: list[Record]
    open: Source
    mib: float


def compare_reading(given: argparse.Namespace, device: torch.device) -> list[Comparison]:
    """Views of one decode, nested or decoded each; forms of the same videos; loader workers."""
    views = sorted(set(given.frames))
    if len(views) < 2:
        raise ValueError(f"--frames is {views[0]}; give two or more counts, as 4 8 16")
    comparisons = []
    for size in given.size:
        preprocessing = _preprocessing(size)
        with tempfile.TemporaryDirectory() as folder:
            videos = _videos(given, Path(folder), preprocessing.resize)
            for form in videos:
                comparisons.append(_compare_views(given, form, views, preprocessing))
            forms = [*videos, *_other_forms(videos[0], Path(folder), preprocessing.resize)]
            comparisons += _compare_forms(given, forms, views[len(views) // 2], preprocessing)
            comparisons += [
                _compare_workers(given, forms, views, preprocessing, workers)
                for workers in given.workers
            ]
    return comparisons


def _compare_views(
    given: argparse.Namespace, form: _Form, views: Sequence[int], preprocessing: Preprocessing
) -> Comparison:
    """One decode for all views, nested or not, against a decode for each."""
    from ffn.benchmarks.timing import Variant, compare, interleave

    each = "a decode per view"

    def dataset(*frames: int, nested: bool = False) -> Any:
        return _dataset(form, frames, preprocessing, nested=nested)

    calls = {
        "one decode": _samples([dataset(*views)]),
        "one decode, nested": _samples([dataset(*views, nested=True)]),
        each: _samples([dataset(view) for view in views]),
    }
    seconds = interleave(calls, rounds=given.rounds, device=_CPU, warmup=1, clock=time.process_time)
    variants = [Variant(name, len(form.records), seconds[name]) for name in calls]
    pairs = [
        ("one decode", each),
        ("one decode, nested", each),
        ("one decode, nested", "one decode"),
    ]
    counts = ", ".join(map(str, views))
    title = (
        f"views {counts} of {preprocessing.crop} px from {len(form.records)} videos, {form.name}"
    )
    return compare(f"{title}; CPU time", variants, pairs)


def _compare_forms(
    given: argparse.Namespace, forms: Sequence[_Form], frames: int, preprocessing: Preprocessing
) -> list[Comparison]:
    """Each form against the JPEG store: frames alone, and whole samples."""
    from ffn.benchmarks.timing import Variant, compare, interleave

    sizes = ", ".join(f"{form.name} {form.mib:.3g}" for form in forms)
    count = len(forms[0].records)
    by_name = {form.name: form for form in forms}
    reads = {form.name: _reads(form, frames) for form in forms}
    reads["memory copy"] = _copies(by_name["store, raw"], frames)
    samples = {form.name: _samples([_dataset(form, [frames], preprocessing)]) for form in forms}
    samples["JPEG files, PIL"] = _pil_samples(by_name["JPEG files"], frames, preprocessing)
    comparisons = []
    for what, calls in (("frames alone", reads), ("whole samples", samples)):
        seconds = interleave(
            calls, rounds=given.rounds, device=_CPU, warmup=1, clock=time.process_time
        )
        variants = [Variant(name, count, seconds[name]) for name in calls]
        pairs = [("store, JPEG", name) for name in calls if name != "store, JPEG"]
        title = f"{frames} frames of {count} videos, {what}; CPU time; MiB per video: {sizes}"
        comparisons.append(compare(title, variants, pairs))
    return comparisons


def _compare_workers(
    given: argparse.Namespace,
    forms: Sequence[_Form],
    views: Sequence[int],
    preprocessing: Preprocessing,
    workers: int,
) -> Comparison:
    """Batches through a loader, every form with the same workers."""
    from ffn.benchmarks.timing import Variant, compare, interleave
    from ffn.data import make_loader

    def batches(form: _Form) -> Callable[[], None]:
        dataset = _dataset(form, views, preprocessing)
        loader = make_loader(dataset, batch_size=2, workers=workers, train=True)
        epochs = itertools.count()

        def run() -> None:
            loader.sampler.set_epoch(next(epochs))
            for _ in loader:
                pass

        return run

    calls = {form.name: batches(form) for form in forms}
    seconds = interleave(calls, rounds=given.rounds, device=_CPU, warmup=1)
    count = len(forms[0].records) // 2 * 2
    variants = [Variant(name, count, seconds[name]) for name in calls]
    pairs = [("store, JPEG", name) for name in calls if name != "store, JPEG"]
    counts = ", ".join(map(str, views))
    title = f"views {counts} of {count} videos through {workers} workers; time on the clock"
    return compare(title, variants, pairs)


_CPU = torch.device("cpu")


def _dataset(
    form: _Form, views: Sequence[int], preprocessing: Preprocessing, *, nested: bool = False
) -> Any:
    from ffn.data import VideoDataset

    return VideoDataset(
        form.records,
        views=views,
        preprocessing=preprocessing,
        train=True,
        nested=nested,
        source=form.open,
    )


def _samples(datasets: Sequence[Any]) -> Callable[[], None]:
    """A function that makes every sample once, with other random frames in each round."""
    epochs = itertools.count()

    def run() -> None:
        epoch = next(epochs)
        for index in range(len(datasets[0])):
            for dataset in datasets:
                dataset[epoch, index]

    return run


def _reads(form: _Form, frames: int) -> Callable[[], None]:
    """A function that reads random frames of every video, and does no more with them."""
    rounds = itertools.count()

    def run() -> None:
        number = next(rounds)
        for index, record in enumerate(form.records):
            video = form.open(record)
            video.read(_indices(len(video), frames, number, index))

    return run


def _copies(raw: _Form, frames: int) -> Callable[[], None]:
    """The limit: as many frames copied from one place in memory to another."""
    from ffn.data.sampling import segment_centre

    rounds = itertools.count()
    video = raw.open(raw.records[0])
    held = video.read(segment_centre(len(video), min(64, len(video))))
    copy = torch.empty_like(held[:1].expand(frames, -1, -1, -1)).contiguous()

    def run() -> None:
        number = next(rounds)
        for index in range(len(raw.records)):
            chosen = torch.tensor(_indices(len(held), frames, number, index))
            torch.index_select(held, 0, chosen, out=copy)

    return run


def _pil_samples(folders: _Form, frames: int, preprocessing: Preprocessing) -> Callable[[], None]:
    """A sample as the repositories of TSM and FFN make it: frame by frame through PIL, in float."""
    from PIL import Image

    from ffn.data.crops import draw_crop

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
    from ffn.data import segment_random

    return segment_random(count, frames, np.random.default_rng([number, index]))


def _videos(given: argparse.Namespace, folder: Path, short_side: int) -> list[_Form]:
    """The given videos as they are, or films with short and with long groups of pictures."""
    from ffn.benchmarks.clips import write_film
    from ffn.data import Record, open_video, read_annotations

    def form(name: str, records: Sequence[Record]) -> _Form:
        sizes = [
            Path(record.path).stat().st_size for record in records if Path(record.path).is_file()
        ]
        mib = sum(sizes) / len(records) / 2**20
        return _Form(name, list(records), lambda r: open_video(r.path, frames=r.frames), mib)

    if given.annotations is not None:
        records = read_annotations(given.annotations, root=given.root)[0]
        return [form("videos", records[: given.videos])]
    if given.root is not None:
        raise ValueError(f"--root {given.root} needs --annotations, the list of videos in it")
    forms = []
    for gop in given.gop:
        paths = [folder / f"gop{gop}" / f"{i}.mp4" for i in range(given.videos)]
        paths[0].parent.mkdir()
        for seed, path in enumerate(paths):
            write_film(path, short_side, given.film_frames, gop, seed)
        forms.append(form(f"mp4, GOP {gop}", [Record(str(path), 0) for path in paths]))
    return forms


def _other_forms(videos: _Form, folder: Path, short_side: int) -> list[_Form]:
    """The videos as JPEG files per frame, and as stores."""
    from PIL import Image

    from ffn.data import ClipStore, Record, pack
    from ffn.data.decoding import FrameFolder

    stores = []
    for name, form in (("store, JPEG", "jpeg"), ("store, raw", "raw")):
        report = pack(videos.records, folder / form, format=form, short_side=short_side)
        store = ClipStore(folder / form)
        mib = report.bytes / len(videos.records) / 2**20
        stores.append(_Form(name, videos.records, store.open_record, mib))

    records, size = [], 0
    for number, record in enumerate(videos.records):
        place = folder / "images" / str(number)
        place.mkdir(parents=True)
        stored = stores[1].open(record)
        for index in range(len(stored)):
            path = place / f"{index + 1:05d}.jpg"
            image = stored.read([index])[0].numpy()
            Image.fromarray(image).save(path, quality=90)  # as in the store
            size += path.stat().st_size
        records.append(Record(str(place), record.label, len(stored)))
    mib = size / len(records) / 2**20
    images = _Form("JPEG files", records, lambda r: FrameFolder(r.path, frames=r.frames), mib)
    return [images, *stores]


def _preprocessing(size: int) -> Preprocessing:
    """As 224 px are cut from 256."""
    from ffn.data import Preprocessing

    return Preprocessing(crop=size, resize=round(size * 256 / 224))
