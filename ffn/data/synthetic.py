"""Generated data set of short mp4 films whose classes only motion over time tells apart.

One subject, a bright dart, moves over a textured ground; its motion is the class (`CLASSES`). Its
position (the film wraps around at its borders), heading and size phase start uniformly at random
and a class only adds to them, so a single frame is distributed the same for every class: a network
that sees one frame stays at chance. A decoy, a bluish dart that makes the motion of a class drawn
at random, texture, noise, brightness flicker and camera jitter distract. In a third of the films
the decoy looks like the subject: labels are as uncertain as those of real sets, and nobody can name
more than 85 % of the films right.

How many frames a class needs follows from sampling. Four evenly spaced frames show in which order
the dart moves and, with less than half a turn between two of them, which way it turns; pulsing once
and three times looks the same until there are 8, swaying three and five times until there are 16.
Grounds hardly differ between films, or a network would tell the films apart by their grounds before
it looked at any motion.

    python -m ffn.data.synthetic data/motion

It stands in for a public data set in tests and in the quickstart; numbers reached on it say nothing
about real videos.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import inspect
import json
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

__all__ = ["CLASSES", "draw", "generate"]

FORMAT = 2  # raise it when the same parameters give other films
FRAME_RATE = 20
ALIKE = 1 / 3  # of the films have a decoy that looks like the subject
SPLITS = ("train", "val")

Offsets = dict[str, np.ndarray]
Motion = Callable[[np.ndarray, np.random.Generator], Offsets]


# Motions: what a class adds to the dart's x and y (frame sides, rightwards and downwards), heading
# (turns, clockwise) and size phase (turns, smallest at 0), given `time` in [0, 1].


def _orbit(sign: int) -> Motion:
    def motion(time: np.ndarray, rng: np.random.Generator) -> Offsets:
        radius = rng.uniform(0.14, 0.24)
        angle = 2 * np.pi * (rng.uniform() + sign * rng.uniform(0.5, 1.8) * time)
        return {"x": radius * np.cos(angle), "y": radius * np.sin(angle)}

    return motion


def _spin(sign: int) -> Motion:
    def motion(time: np.ndarray, rng: np.random.Generator) -> Offsets:
        return {"heading": sign * rng.uniform(0.5, 1.8) * time}

    return motion


def _sway(cycles: int) -> Motion:
    def motion(time: np.ndarray, rng: np.random.Generator) -> Offsets:
        amplitude, direction = rng.uniform(0.14, 0.24), 2 * np.pi * rng.uniform()
        phase = 2 * np.pi * (rng.uniform() + (cycles + rng.uniform(-0.15, 0.15)) * time)
        sway = amplitude * np.sin(phase)
        return {"x": sway * np.cos(direction), "y": sway * np.sin(direction)}

    return motion


def _pulse(cycles: int) -> Motion:
    def motion(time: np.ndarray, rng: np.random.Generator) -> Offsets:
        return {"size": (cycles + rng.uniform(-0.15, 0.15)) * time}

    return motion


def _in_turn(first: str, second: str, sign: int) -> Motion:
    def motion(time: np.ndarray, rng: np.random.Generator) -> Offsets:
        speed, switch = sign * rng.uniform(0.7, 1.4), rng.uniform(0.35, 0.65)
        return {
            first: speed * np.minimum(time, switch),
            second: speed * np.maximum(time - switch, 0),
        }

    return motion


MOTIONS: dict[str, Motion] = {
    "orbit_clockwise": _orbit(1),
    "orbit_counterclockwise": _orbit(-1),
    "spin_clockwise": _spin(1),
    "spin_counterclockwise": _spin(-1),
    "sway_three_times": _sway(3),
    "sway_five_times": _sway(5),
    "pulse_once": _pulse(1),
    "pulse_three_times": _pulse(3),
    "right_then_down": _in_turn("x", "y", 1),
    "down_then_right": _in_turn("y", "x", 1),
    "left_then_up": _in_turn("x", "y", -1),
    "up_then_left": _in_turn("y", "x", -1),
}
CLASSES: tuple[str, ...] = tuple(MOTIONS)


def _poses(name: str, time: np.ndarray, rng: np.random.Generator) -> Offsets:
    """Dart at each `time`: uniform start, a small drift, and the motion of class `name`."""
    start, drift = rng.uniform(size=4), np.append(rng.uniform(-0.08, 0.08, size=3), 0.0)
    motion = MOTIONS[name](time, rng)
    return {
        key: start[i] + drift[i] * time + motion.get(key, 0.0)
        for i, key in enumerate(("x", "y", "heading", "size"))
    }


# Drawing. A grid holds the x and y of every pixel of every frame, in pixels, two arrays (T, H, W).


def _wrapped(distance: np.ndarray, size: int) -> np.ndarray:
    """The shortest distance in pixels in a film that wraps around at its borders."""
    return (distance + size / 2) % size - size / 2


def _column(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)[:, None, None]  # (T, 1, 1)


def _dart(grid: tuple[np.ndarray, np.ndarray], pose: Offsets, size: int) -> np.ndarray:
    """Cover of the dart per pixel in [0, 1], (T, H, W): a triangle whose tip shows the heading."""
    right = _wrapped(grid[0] - _column(size * pose["x"]), size)
    down = _wrapped(grid[1] - _column(size * pose["y"]), size)
    heading = 2 * np.pi * pose["heading"]
    cos, sin = _column(np.cos(heading)), _column(np.sin(heading))
    length = _column(0.15 * size * 1.6 ** -np.cos(2 * np.pi * pose["size"]))
    along, across = right * cos + down * sin, np.abs(down * cos - right * sin)
    outside = np.maximum(-along - length, 0.33 * (along - length) + 0.944 * across)  # pixels
    return np.clip(0.5 - outside, 0, 1)


def draw(name: str, *, size: int, frames: int, rng: np.random.Generator) -> np.ndarray:
    """Draw one film of a class.

    Args:
        name: Class, one of `CLASSES`.
        size: Height and width in pixels.
        frames: Length T of the film.
        rng: Source of all randomness of the film.

    Returns:
        uint8 RGB frames, (T, size, size, 3).

    Raises:
        ValueError: if `name` is not a class.
    """
    if name not in MOTIONS:
        raise ValueError(f"unknown class {name!r}; the classes are {', '.join(CLASSES)}")
    time = (np.arange(frames) + 0.5) / frames
    pose = _poses(name, time, rng)
    jitter = rng.normal(0, 0.2, size=(2, frames))  # of the camera, pixels
    y, x = np.mgrid[:size, :size].astype(np.float32) + np.float32(0.5)
    grid = (x + _column(jitter[0]), y + _column(jitter[1]))  # (T, H, W) each

    texture = np.zeros((frames, size, size), np.float32)
    for _ in range(3):
        wave = rng.uniform(-1, 1, size=2) * 2 * np.pi / rng.uniform(8, 40)
        height, phase = 4 * rng.uniform(0.3, 1), 2 * np.pi * rng.uniform()
        texture += np.float32(height) * np.sin(
            np.float32(wave[0]) * grid[0] + np.float32(wave[1]) * grid[1] + np.float32(phase)
        )
    ground = rng.uniform(85, 95) + rng.normal(0, 2, size=3)
    contrast = rng.uniform(100, 130)
    yellow, blue = contrast * np.array([1, 1, 0.6]), contrast * np.array([0.2, 0.4, 0.7])
    alike = rng.uniform() < ALIKE
    decoy = _poses(CLASSES[rng.integers(len(CLASSES))], time, rng)
    objects = [
        (_dart(grid, pose, size), ground + yellow),
        (_dart(grid, decoy, size), ground + (yellow if alike else blue)),
    ]
    if rng.uniform() < 0.5:  # which one passes in front
        objects.reverse()

    film = ground.astype(np.float32) + texture[..., None]  # (T, H, W, 3)
    for cover, colour in objects:
        film += cover[..., None] * (colour.astype(np.float32) + texture[..., None] / 2 - film)
    film *= _column(rng.normal(1, 0.03, size=frames))[..., None]
    film += 5 * rng.standard_normal(film.shape, dtype=np.float32)
    return np.clip(np.rint(film), 0, 255).astype(np.uint8)


# The data set.


@dataclass(frozen=True)
class _Parameters:
    """What a data set is made from; equal parameters and library versions give equal bytes."""

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
    `classes.txt`, and `dataset.json` (parameters, and a SHA-256 fingerprint of all the rest). It
    appears whole or not at all. Film i of a class depends on `seed`, split, class and i only, so
    asking for more films keeps those that were there.

    Args:
        folder: Where to write; it must be absent, empty, or hold the same data set.
        train_per_class: Training films per class.
        val_per_class: Validation films per class.
        size: Height and width in pixels, even.
        frames: Frames per film.
        seed: Seed of all randomness.
        workers: Processes to draw with; 0 draws in this one. More than 0 needs, as with data
            loaders, `if __name__ == "__main__"` where the platform starts processes afresh.

    Returns:
        The folder.

    Raises:
        FileExistsError: if `folder` holds anything else, or a damaged copy. Nothing is changed.
        ModuleNotFoundError: if PyAV, the extra `video`, is not installed.
        ValueError: if a parameter is out of range.
    """
    folder = Path(folder)
    parameters = _Parameters(train_per_class, val_per_class, size, frames, seed)
    if _holds(folder, parameters):
        return folder

    partial = folder.parent / f".{folder.name}.partial-{os.getpid()}"
    try:
        (partial / "videos").mkdir(parents=True)
        _write(partial, parameters, workers)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _holds(folder: Path, parameters: _Parameters) -> bool:
    """Whether `folder` holds this data set; False if it is absent or empty, an error otherwise."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        record = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
        found = record["parameters"]
    except (OSError, ValueError, KeyError) as error:
        raise FileExistsError(
            f"{folder} exists and holds no generated data set; choose another folder"
        ) from error
    if found != asdict(parameters):
        raise FileExistsError(
            f"{folder} holds a data set made with {found}; asked for {asdict(parameters)}. "
            "Choose another folder, or delete this one"
        )
    if record.get("fingerprint") != _fingerprint(folder):
        raise FileExistsError(
            f"{folder} holds a damaged data set: its files do not match the fingerprint in "
            "dataset.json. Delete it, then make it again"
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
            list(pool.map(_film, jobs, chunksize=16))
    else:
        for job in jobs:
            _film(job)

    record = {"parameters": asdict(parameters), "fingerprint": _fingerprint(folder)}
    (folder / "dataset.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _film(job: tuple[Path, str, str, int, _Parameters]) -> None:
    """Draw and encode one film."""
    path, split, name, index, parameters = job
    rng = np.random.default_rng([parameters.seed, SPLITS.index(split), CLASSES.index(name), index])
    _encode(path, draw(name, size=parameters.size, frames=parameters.frames, rng=rng))


def _encode(path: Path, film: np.ndarray) -> None:
    """Write uint8 RGB frames (T, H, W, 3) as H.264 in mp4."""
    try:
        import av
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "writing videos needs PyAV; install the extra: pip install 'frame-flexible[video]'"
        ) from error
    # A constant quantiser and one thread: x264's rate control gives other bytes from run to run.
    options = {"qp": "20", "preset": "veryfast", "threads": "1"}
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=FRAME_RATE, options=options)
        stream.height, stream.width = film.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for image in film:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


def _fingerprint(folder: Path) -> str:
    """SHA-256 over the lists and the films, by name."""
    digest = hashlib.sha256()
    lists = [folder / f"{split}.csv" for split in SPLITS] + [folder / "classes.txt"]
    for path in [*lists, *sorted((folder / "videos").glob("*.mp4"))]:
        digest.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `python -m ffn.data.synthetic`."""
    defaults = inspect.signature(generate).parameters
    parser = argparse.ArgumentParser(prog="ffn.data.synthetic", description=__doc__.split("\n")[0])
    parser.add_argument("folder", help="where to write the data set")
    parser.add_argument(
        "--clips-per-class",
        type=int,
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
    except (FileExistsError, ModuleNotFoundError, ValueError) as error:
        parser.error(str(error))
    print(f"{folder}: {len(CLASSES)} classes, {train_per_class} + {val_per_class} films each")


if __name__ == "__main__":
    main()
