"""Benchmark of archives: predicting a list of videos, against its reading and its network alone."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from ffn.benchmarks.formats import generated_videos
from ffn.benchmarks.timing import Comparison, Variant, compare, interleave
from ffn.core import convert
from ffn.data import Preprocessing, Record
from ffn.serve import Predictor
from ffn.serve.archive.loader import load_chunks
from ffn.serve.archive.predict import ArchiveOptions, Listed, chunks_of, predict_archive
from ffn.zoo import create_model, save_weights

DISTINCT = 4  # generated videos; the others are copies
GOP = 250  # frames per group of pictures: the default of x264
NUM_CLASSES = 174
ARCHIVE, READING, NETWORK, SLOWER = "archive", "reading alone", "network alone", "the slower one"


def compare_archive(
    models: Sequence[str],
    *,
    frames: int,
    size: int,
    videos: int,
    video_frames: int,
    batch_size: int,
    workers: int,
    rounds: int,
    device: torch.device,
) -> Iterator[Comparison]:
    """Compare the prediction of a list of videos with its two parts.

    "reading alone" reads the clips as the archive does, in as many processes, and drops them.
    "network alone" predicts the same batches of clips in memory. In each round, the slower of both
    bounds the archive. The predictor is built before; the title of a comparison has its time.

    Args:
        models: names of models; their weights are random.
        frames: of a clip; the network is converted to this count.
        size: height and width of a clip, pixels.
        videos: in the list.
        video_frames: of each.
        batch_size: videos per forward pass.
        workers: processes that read.
        rounds: timed runs of each variant.
        device: of the network.
    """
    preprocessing = Preprocessing(crop=size, resize=round(size * 256 / 224))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        listed = _listed(folder / "videos", videos, preprocessing.resize, video_frames)
        options = ArchiveOptions(frames=frames, batch_size=batch_size, workers=workers)
        for model in models:
            weights = _random_weights(folder, model, frames, preprocessing)
            started = time.perf_counter()
            predictor = Predictor(weights, device=device)
            predictor.resolve_precision(frames)
            startup = time.perf_counter() - started
            title = f"{model}, {videos} videos, {frames} frames of {size} px, "
            title += f"batches of {batch_size}, {workers} reading process{'es' * (workers != 1)}, "
            title += f"{predictor.network}; building the predictor takes {startup:.1f} s"
            yield _compare(title, predictor, listed, options, folder, rounds)


def _compare(
    title: str,
    predictor: Predictor,
    listed: Listed,
    options: ArchiveOptions,
    folder: Path,
    rounds: int,
) -> Comparison:
    reader, count = predictor.reader(options.frames), len(listed.records)
    chunks = chunks_of(count, options.batch_size)
    clips = [reader.read(record.path) for record in listed.records[:DISTINCT]]

    def read() -> None:
        for _ in load_chunks(
            listed.records, reader, chunks, workers=options.workers, timeout=options.timeout
        ):
            pass

    def run_network() -> None:
        for chunk in chunks:
            predictor.predict([clips[index % len(clips)] for index in chunk])

    def predict() -> None:
        predict_archive(lambda precision: predictor, listed, folder / "predictions.csv", options)

    calls = {ARCHIVE: predict, READING: read, NETWORK: run_network}
    seconds = interleave(calls, rounds=rounds, device=predictor.device, warmup=1)
    both = zip(seconds[READING], seconds[NETWORK], strict=True)
    seconds[SLOWER] = tuple(max(pair) for pair in both)
    variants = [Variant(name, count, times) for name, times in seconds.items()]
    pairs = [(ARCHIVE, reference) for reference in (READING, NETWORK, SLOWER)]
    return compare(title, variants, pairs)


def _listed(folder: Path, number: int, short_side: int, frames: int) -> Listed:
    """A list of generated videos."""
    originals = generated_videos(
        folder, number=min(number, DISTINCT), short_side=short_side, frames=frames, gop=GOP
    ).records
    records = [Record(originals[index % DISTINCT].path, 0) for index in range(number)]
    return Listed(records, [record.path for record in records], str(folder))


def _random_weights(folder: Path, model: str, frames: int, preprocessing: Preprocessing) -> Path:
    """A file with a frame-flexible network."""
    path = folder / f"{model}.safetensors"
    network = convert(create_model(model, num_classes=NUM_CLASSES), (frames,))
    facts = {
        "model": model,
        "num_classes": NUM_CLASSES,
        "trained_frames": [frames],
        "preprocessing": preprocessing.to_dict(),
    }
    save_weights(network, path, facts)
    return path
