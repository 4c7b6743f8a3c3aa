"""Generate a data set of short mp4 videos whose classes differ only in their motion over time.

`ffn.datasets.motions` draws the frames; this module writes mp4 files, lists and class names.

    python -m ffn.datasets.synthetic data/motion

It replaces a public data set in tests and in the quickstart. Accuracies on it do not transfer to
real videos.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import cyclopts
import numpy as np

from ffn.datasets.motions import CLASSES, draw
from ffn.files import explain, write_csv, write_text

FORMAT = 2  # increase it when the same parameters give other videos
FRAME_RATE = 20
SPLITS = ("train", "val")


def generate(
    folder: str | Path,
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
    `classes.txt`, and `dataset.json` with the parameters. It is written under a temporary name and
    renamed when it is complete. Video i of a class depends only on `seed`, split, class and i.
    Equal parameters and library versions give equal bytes.

    Args:
        folder: Where to write; it must be absent, empty, or hold the same data set.
        train_per_class: Training videos per class.
        val_per_class: Validation videos per class.
        size: Height and width in pixels, even.
        frames: Frames per video.
        seed: Seed of all randomness.
        workers: Number of processes; 0 runs in this process.

    Returns:
        The folder.

    Raises:
        FileExistsError: if `folder` holds anything else; it stays unchanged.
    """
    folder = Path(folder)
    parameters = {
        "train_per_class": train_per_class,
        "val_per_class": val_per_class,
        "size": size,
        "frames": frames,
        "seed": seed,
        "format": FORMAT,
    }
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


def _holds(folder: Path, parameters: dict[str, int]) -> bool:
    """Whether `folder` holds this data set; False if it is absent or empty.

    Raises:
        FileExistsError: if it holds anything else.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        found = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))["parameters"]
    except (OSError, ValueError, LookupError, TypeError):
        found = None
    if found != parameters:
        raise FileExistsError(
            f"{folder} holds something else, or a data set of other parameters: found {found}, "
            f"expected {parameters}. Choose another folder, or delete this one"
        )
    return True


def _write(folder: Path, parameters: dict[str, int], workers: int) -> None:
    jobs = []
    for split in SPLITS:
        videos = {
            f"videos/{split}_{name}_{index:04d}.mp4": (name, index)
            for name in CLASSES
            for index in range(parameters[f"{split}_per_class"])
        }
        jobs += [(folder / path, split, *video, parameters) for path, video in videos.items()]
        rows = [(path, name, parameters["frames"]) for path, (name, _) in videos.items()]
        write_csv(folder / f"{split}.csv", [("path", "label", "frames"), *rows])
    write_text(folder / "classes.txt", "\n".join(CLASSES) + "\n")

    if workers:
        with ProcessPoolExecutor(workers) as pool:
            list(pool.map(_write_video, jobs, chunksize=16))
    else:
        for job in jobs:
            _write_video(job)

    write_text(folder / "dataset.json", json.dumps({"parameters": parameters}, indent=2) + "\n")


def _write_video(job: tuple[Path, str, str, int, dict[str, int]]) -> None:
    """Draw and encode one video."""
    path, split, name, index, parameters = job
    seed = [parameters["seed"], SPLITS.index(split), CLASSES.index(name), index]
    rng = np.random.default_rng(seed)
    _encode(path, draw(name, size=parameters["size"], frames=parameters["frames"], rng=rng))


def _encode(path: Path, video: np.ndarray) -> None:
    """Write uint8 RGB frames (T, H, W, 3) as H.264 in mp4."""
    import av  # only needed to write

    # The output of x264's rate control varies between runs; a constant quantizer is deterministic.
    options = {"qp": "20", "preset": "veryfast", "threads": "1"}
    with path.open("wb") as file, av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=FRAME_RATE, options=options)
        stream.height, stream.width = video.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for image in video:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


def _command(
    folder: Path,
    *,
    clips_per_class: tuple[int, int] = (80, 60),
    size: int = 28,
    frames: int = 40,
    seed: int = 0,
    workers: int = os.cpu_count() or 1,
) -> None:
    """Generate short videos of motions, with lists for training and testing.

    Args:
        folder: Where to write; it must be absent, empty, or hold the same data set.
        clips_per_class: Videos for training and for testing.
        size: Height and width in pixels, even.
        frames: Frames per video.
        seed: Seed of all randomness.
        workers: Processes.
    """
    train, val = clips_per_class
    options = {"size": size, "frames": frames, "seed": seed, "workers": workers}
    generate(folder, train_per_class=train, val_per_class=val, **options)
    print(f"{folder}: {len(CLASSES)} classes")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `python -m ffn.datasets.synthetic`."""
    app = cyclopts.App("ffn.datasets.synthetic", result_action="return_value", version_flags=[])
    app.default_parameter = cyclopts.Parameter(negative=())
    app.default(_command)
    try:
        app(arguments)
    except (OSError, ValueError) as error:
        sys.exit(f"ffn.datasets.synthetic: {explain(error)}")


if __name__ == "__main__":
    main()
