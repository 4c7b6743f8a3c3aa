"""Generate a data set of short mp4 videos whose classes differ only in their motion over time.

`ffn.datasets.motions` draws the frames; this module writes mp4 files, lists and class names.

    python -m ffn.datasets.synthetic data/motion

It replaces a public data set in tests and in the quickstart. Accuracies on it do not transfer to
real videos.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import inspect
import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ffn.datasets.motions import CLASSES, draw
from ffn.files import explain

__all__ = ["CLASSES", "draw", "generate"]

FORMAT = 2  # increase it when the same parameters give other videos
FRAME_RATE = 20
SPLITS = ("train", "val")
_PARTIAL = ".partial"


@dataclass(frozen=True)
class _Parameters:
    """Equal parameters and library versions give equal bytes."""

    train_per_class: int
    val_per_class: int
    size: int
    frames: int
    seed: int
    format: int = FORMAT

    def __post_init__(self) -> None:
        for name, least in (
            ("train_per_class", 1),
            ("val_per_class", 1),
            ("size", 16),
            ("frames", 1),
            ("seed", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if self.size % 2:
            raise ValueError(f"size is {self.size}; H.264 needs an even number of pixels")


def generate(
    folder: str | os.PathLike[str],
    *,
    train_per_class: int = 80,
    val_per_class: int = 60,
    size: int = 28,
    frames: int = 40,
    seed: int = 0,
    workers: int = 0,
) -> Path:
    """Write the data set, or return at once if `folder` already holds it.

    The folder gets `videos/*.mp4` (H.264), `train.csv` and `val.csv` (columns path, label, frames),
    `classes.txt`, and `dataset.json` (parameters, and a SHA-256 fingerprint of the other files). It
    is written under a temporary name and renamed when it is complete; if the folder exists, each
    file and folder in it is. Video i of a class depends only on `seed`, split, class and i.

    Args:
        folder: Where to write; it must be absent, empty, or hold the same data set.
        train_per_class: Training videos per class.
        val_per_class: Validation videos per class.
        size: Height and width in pixels, even.
        frames: Frames per video.
        seed: Seed of all randomness.
        workers: Number of processes; 0 runs in this process. As with data loaders, more than
            0 needs `if __name__ == "__main__"` on platforms that spawn processes.

    Returns:
        The folder.

    Raises:
        FileExistsError: if `folder` holds anything else, or a damaged copy; it stays unchanged.
        ValueError: if a parameter is out of range.
    """
    folder = Path(folder)
    parameters = _Parameters(train_per_class, val_per_class, size, frames, seed)
    if _holds(folder, parameters):
        return folder

    exists = folder.exists()  # it may be the working folder, or where a disk is mounted
    partial = folder / _PARTIAL if exists else folder.parent / f".{folder.name}{_PARTIAL}"
    partial = partial.with_name(f"{partial.name}-{os.getpid()}")
    try:
        (partial / "videos").mkdir(parents=True)
        _write(partial, parameters, workers)
        if exists:
            for path in sorted(partial.iterdir(), key=lambda path: path.name == "dataset.json"):
                path.rename(folder / path.name)
        else:
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _holds(folder: Path, parameters: _Parameters) -> bool:
    """Whether `folder` holds this data set; False if it is absent or empty.

    Raises:
        FileExistsError: if it holds anything else.
    """
    if not folder.exists():
        return False
    if folder.is_dir() and all(path.name.startswith(_PARTIAL) for path in folder.iterdir()):
        return False  # empty but for what a killed process left
    try:
        record = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
        found = record["parameters"]
    except (OSError, ValueError, KeyError) as error:
        raise FileExistsError(
            f"{folder} exists and does not hold a generated data set; choose another folder"
        ) from error
    if found != asdict(parameters):
        raise FileExistsError(
            f"{folder} holds a data set made with {found}, not {asdict(parameters)}. Choose "
            "another folder, or delete this one"
        )
    if record.get("fingerprint") != _fingerprint(folder):
        raise FileExistsError(
            f"{folder} holds a damaged data set: its files do not match the fingerprint in "
            "dataset.json. Delete it and generate it again"
        )
    return True


def _write(folder: Path, parameters: _Parameters, workers: int) -> None:
    jobs = []
    for split, count in zip(
        SPLITS, (parameters.train_per_class, parameters.val_per_class), strict=True
    ):
        names = [(name, index) for name in CLASSES for index in range(count)]
        paths = [f"videos/{split}_{name}_{index:04d}.mp4" for name, index in names]
        jobs += [
            (folder / path, split, name, index, parameters)
            for path, (name, index) in zip(paths, names, strict=True)
        ]
        with open(folder / f"{split}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("path", "label", "frames"))
            writer.writerows(
                (path, name, parameters.frames)
                for path, (name, _) in zip(paths, names, strict=True)
            )
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n", encoding="utf-8")

    if workers:
        with ProcessPoolExecutor(workers) as pool:
            list(pool.map(_write_video, jobs, chunksize=16))
    else:
        for job in jobs:
            _write_video(job)

    record = {"parameters": asdict(parameters), "fingerprint": _fingerprint(folder)}
    (folder / "dataset.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _write_video(job: tuple[Path, str, str, int, _Parameters]) -> None:
    """Draw and encode one video."""
    path, split, name, index, parameters = job
    rng = np.random.default_rng([parameters.seed, SPLITS.index(split), CLASSES.index(name), index])
    _encode(path, draw(name, size=parameters.size, frames=parameters.frames, rng=rng))


def _encode(path: Path, video: np.ndarray) -> None:
    """Write uint8 RGB frames (T, H, W, 3) as H.264 in mp4."""
    import av  # only needed to write

    # The output of x264's rate control varies between runs; a constant quantizer is deterministic.
    options = {"qp": "20", "preset": "veryfast", "threads": "1"}
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=FRAME_RATE, options=options)
        stream.height, stream.width = video.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for image in video:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


def _fingerprint(folder: Path) -> str:
    """SHA-256 over names and contents of the lists and the videos."""
    digest = hashlib.sha256()
    lists = [folder / f"{split}.csv" for split in SPLITS] + [folder / "classes.txt"]
    for path in [*lists, *sorted((folder / "videos").glob("*.mp4"))]:
        digest.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `python -m ffn.datasets.synthetic`."""
    defaults = inspect.signature(generate).parameters
    parser = argparse.ArgumentParser(
        prog="ffn.datasets.synthetic", description=__doc__.split("\n")[0]
    )
    parser.add_argument("folder", help="where to write the data set")
    parser.add_argument(
        "--clips-per-class",
        type=int,
        help="training and validation videos",
        nargs=2,
        metavar=("TRAIN", "VAL"),
        default=[defaults["train_per_class"].default, defaults["val_per_class"].default],
    )
    parser.add_argument("--size", type=int, default=defaults["size"].default, help="pixels")
    parser.add_argument("--frames", type=int, default=defaults["frames"].default)
    parser.add_argument("--seed", type=int, default=defaults["seed"].default)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    args = parser.parse_args(arguments)
    train_per_class, val_per_class = args.clips_per_class
    try:
        folder = generate(
            args.folder,
            train_per_class=train_per_class,
            val_per_class=val_per_class,
            size=args.size,
            frames=args.frames,
            seed=args.seed,
            workers=args.workers,
        )
    except (OSError, ValueError) as error:
        parser.error(explain(error))
    print(f"{folder}: {len(CLASSES)} classes, {train_per_class} + {val_per_class} videos each")


if __name__ == "__main__":
    main()
