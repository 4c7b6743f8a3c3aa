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
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import cyclopts
import numpy as np

from ffn.datasets.motions import CLASSES, draw
from ffn.files import explain, write_csv, write_text

FORMAT = 2  # increase it when the same parameters give other videos
FRAME_RATE = 20
SPLITS = ("train", "val")

Draw = Callable[[str, str, np.random.Generator], np.ndarray]
Job = tuple[Path, str, str, list[int]]  # path, class or text, split and seed of a video


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
    parameters = {
        "train_per_class": train_per_class,
        "val_per_class": val_per_class,
        "size": size,
        "frames": frames,
        "seed": seed,
        "format": FORMAT,
    }
    return write(folder, parameters, CLASSES, partial(_draw, size=size, frames=frames), workers)


def _draw(name: str, split: str, rng: np.random.Generator, size: int, frames: int) -> np.ndarray:
    return draw(name, size=size, frames=frames, rng=rng)


def write(
    folder: str | Path,
    parameters: dict[str, Any],
    classes: Sequence[str],
    draw: Draw,
    workers: int = 0,
    quantizers: tuple[int, int] = (20, 20),
    write_lists: Callable[[Path, dict[str, Any], Sequence[str]], list[Job]] | None = None,
) -> Path:
    """Write a generated data set, or return at once if `folder` already holds it.

    Args:
        folder: As that of `generate`, which says what is written.
        parameters: All that the videos depend on; with `train_per_class`, `val_per_class`,
            `frames` and `seed`.
        classes: Their names.
        draw: Draws a video (T, H, W, 3) uint8 from its class, its split and a random generator.
        workers: Number of processes; 0 runs in this process.
        quantizers: Range of H.264's quantizer.
        write_lists: Writes lists, of these classes by default, and returns the videos to draw.

    Returns:
        The folder.

    Raises:
        FileExistsError: if `folder` holds anything else; it stays unchanged.
    """
    folder = Path(folder)
    if _holds(folder, parameters):
        return folder

    partial_folder = folder.absolute().with_name(f".{folder.absolute().name}.partial-{os.getpid()}")
    try:
        (partial_folder / "videos").mkdir(parents=True)
        jobs = (write_lists or _write_lists)(partial_folder, parameters, classes)
        _write_videos(jobs, partial(_write_video, draw, quantizers), workers)
        write_text(
            partial_folder / "dataset.json", json.dumps({"parameters": parameters}, indent=2) + "\n"
        )
        partial_folder.rename(folder)  # also where an empty folder is
    finally:
        shutil.rmtree(partial_folder, ignore_errors=True)
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


def _write_lists(folder: Path, parameters: dict[str, Any], classes: Sequence[str]) -> list[Job]:
    """Write lists and class names; returns path, class, split and seed of each video."""
    jobs = []
    for split in SPLITS:
        rows = []
        for label, name in enumerate(classes):
            for index in range(parameters[f"{split}_per_class"]):
                path = f"videos/{split}_{name}_{index:04d}.mp4"
                rows.append((path, name, parameters["frames"]))
                seed = [parameters["seed"], SPLITS.index(split), label, index]
                jobs.append((folder / path, name, split, seed))
        write_csv(folder / f"{split}.csv", [("path", "label", "frames"), *rows])
    write_text(folder / "classes.txt", "\n".join(classes) + "\n")
    return jobs


def _write_videos(jobs: list[Any], write_video: Callable[[Any], None], workers: int) -> None:
    if workers:
        with ProcessPoolExecutor(workers) as pool:
            list(pool.map(write_video, jobs, chunksize=16))
    else:
        for job in jobs:
            write_video(job)


def _write_video(draw: Draw, quantizers: tuple[int, int], job: Job) -> None:
    """Draw and encode one video."""
    path, name, split, seed = job
    rng = np.random.default_rng(seed)
    video = draw(name, split, rng)
    low, high = quantizers
    _encode(path, video, int(rng.integers(low, high + 1)))


def _encode(path: Path, video: np.ndarray, quantizer: int) -> None:
    """Write uint8 RGB frames (T, H, W, 3) as H.264 in mp4."""
    import av  # only needed to write

    # The output of x264's rate control varies between runs; a constant quantizer is deterministic.
    options = {"qp": str(quantizer), "preset": "veryfast", "threads": "1"}
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


def run_command(
    program: str, command: Callable[..., None], arguments: Sequence[str] | None = None
) -> None:
    """Run a command that generates a data set; its errors are messages, without traceback."""
    app = cyclopts.App(program, result_action="return_value", version_flags=[])
    app.default_parameter = cyclopts.Parameter(negative=())
    app.default(command)
    try:
        app(arguments)
    except (OSError, ValueError) as error:
        sys.exit(f"{program}: {explain(error)}")


main = partial(run_command, "ffn.datasets.synthetic", _command)


if __name__ == "__main__":
    main()
