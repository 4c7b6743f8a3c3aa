"""Generate a data set of short mp4 videos whose classes differ only in their motion over time.

`ffn.datasets.motions` draws the frames; this module writes mp4 files, lists and class names.

    python -m ffn.datasets.synthetic data/motion

It replaces a public data set in tests and in the quickstart. Accuracies on it do not transfer to
real videos.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ffn.data.decoding.opening import local_address
from ffn.datasets.motions import CLASSES, draw
from ffn.files import explain, write_csv, write_text

FORMAT = 2  # increase it when the same parameters give other videos
FRAME_RATE = 20
SPLITS = ("train", "val")


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
        least = {"train_per_class": 1, "val_per_class": 1, "size": 16, "frames": 1, "seed": 0}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {value}")
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
    is written under a temporary name and renamed when it is complete. Video i of a class depends
    only on `seed`, split, class and i.

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

    partial = folder.absolute().with_name(f".{folder.absolute().name}.partial-{os.getpid()}")
    try:
        (partial / "videos").mkdir(parents=True)
        _write(partial, parameters, workers)
        partial.rename(folder)  # also where an empty folder is
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _holds(folder: Path, parameters: _Parameters) -> bool:
    """Whether `folder` holds this data set; False if it is absent or empty.

    Raises:
        FileExistsError: if it holds anything else.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        record = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        record = {}
    if record != {"parameters": asdict(parameters), "fingerprint": _fingerprint(folder)}:
        raise FileExistsError(
            f"{folder} holds something else, a damaged copy, or a data set of other parameters: "
            f"found {record.get('parameters')}, expected {asdict(parameters)}. Choose another "
            "folder, or delete this one"
        )
    return True


def _write(folder: Path, parameters: _Parameters, workers: int) -> None:
    jobs = []
    counts = parameters.train_per_class, parameters.val_per_class
    for split, count in zip(SPLITS, counts, strict=True):
        videos = {
            f"videos/{split}_{name}_{index:04d}.mp4": (name, index)
            for name in CLASSES
            for index in range(count)
        }
        jobs += [(folder / path, split, *video, parameters) for path, video in videos.items()]
        rows = [(path, name, parameters.frames) for path, (name, _) in videos.items()]
        write_csv(folder / f"{split}.csv", [("path", "label", "frames"), *rows])
    write_text(folder / "classes.txt", "\n".join(CLASSES) + "\n")

    if workers:
        with ProcessPoolExecutor(workers) as pool:
            list(pool.map(_write_video, jobs, chunksize=16))
    else:
        for job in jobs:
            _write_video(job)

    record = {"parameters": asdict(parameters), "fingerprint": _fingerprint(folder)}
    write_text(folder / "dataset.json", json.dumps(record, indent=2) + "\n")


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
    with av.open(local_address(path), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=FRAME_RATE, options=options)
        stream.height, stream.width = video.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for image in video:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


def _fingerprint(folder: Path) -> str:
    """SHA-256 over names and contents of the lists and the videos."""
    digest = hashlib.sha256()
    lists = [folder / name for name in (*(f"{split}.csv" for split in SPLITS), "classes.txt")]
    for path in filter(Path.is_file, [*lists, *sorted(folder.glob("videos/*.mp4"))]):
        digest.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `python -m ffn.datasets.synthetic`."""
    parser = argparse.ArgumentParser(
        prog="ffn.datasets.synthetic", description=__doc__.split("\n")[0]
    )
    parser.add_argument("folder", help="where to write the data set")
    parser.add_argument("--clips-per-class", type=int, nargs=2, metavar=("TRAIN", "VAL"))
    parser.add_argument("--size", type=int, help="height and width in pixels")
    parser.add_argument("--frames", type=int, help="frames per video")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    given = {k: v for k, v in vars(parser.parse_args(arguments)).items() if v is not None}
    numbers = given.pop("clips_per_class", [])
    given |= zip(("train_per_class", "val_per_class"), numbers, strict=False)
    try:
        folder = generate(**given)
    except (OSError, ValueError) as error:
        parser.error(explain(error))
    print(f"{folder}: {len(CLASSES)} classes")


if __name__ == "__main__":
    main()
