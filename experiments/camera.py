"""Draw videos of a moving camera, whose motion is the class.

A virtual camera looks at a picture, a video or a drawing, and its pose changes over the video: its
position (in short sides of the frame), the logarithm of its zoom, and its roll. The class is the
axis that moves and its direction (`CLASSES`), as seen by whoever holds the camera: with pan_left,
the content moves to the right; with roll_clockwise, it turns counterclockwise. Speeds are eased or
constant, over most of the video. The other axes drift, at most a quarter as much, or a quarter of
the smallest motion if the camera stands still, and it shakes. In some videos an object passes.

Drawings are overlapping shapes of all sizes ("dead leaves"), whose edges are distributed as those
of natural images (Lee, Mumford and Huang, Occlusion models for natural images, IJCV 2001).

    python experiments/camera.py data/camera --sources data/footage
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ffn.data import open_video
from ffn.data.suffixes import IMAGE_SUFFIXES, VIDEO_SUFFIXES, visible
from ffn.datasets import motions
from ffn.datasets.synthetic import SPLITS, run_command, write

FORMAT = 1  # increase it when the same parameters give other videos

# Axis that moves, and its sign.
CLASSES: dict[str, tuple[str, int] | None] = {
    "still": None,
    "pan_left": ("x", -1),
    "pan_right": ("x", 1),
    "tilt_up": ("y", -1),
    "tilt_down": ("y", 1),
    "zoom_in": ("zoom", 1),
    "zoom_out": ("zoom", -1),
    "roll_clockwise": ("roll", 1),
    "roll_counterclockwise": ("roll", -1),
}
# Smallest and largest motion of a class: short sides, logarithm of the zoom, radians.
AMOUNTS = {"x": (0.12, 1.6), "y": (0.12, 1.6), "zoom": (0.15, 1.2), "roll": (0.12, 2.0)}
# Motion of the content at the border of the frame, in short sides per unit.
LEVERS = {"x": 1.0, "y": 1.0, "zoom": 0.5, "roll": 0.5}
ASPECTS = (1, 4 / 3, 16 / 9, 3 / 4, 9 / 16)
SIDE = 320  # short side of pictures and videos that the camera looks at, px
OVERSAMPLING = 2  # drawn rows and columns per row and column of a frame, which are averaged

Pose = dict[str, np.ndarray]


def draw(
    name: str,
    split: str,
    rng: np.random.Generator,
    *,
    sources: dict[str, Sequence[str]] | None = None,
    size: int = 48,
    frames: int = 40,
) -> np.ndarray:
    """Draw a video of a class.

    Args:
        name: One of `CLASSES`.
        split: Key of `sources`.
        rng: Decides everything else.
        sources: Pictures and videos to look at; None: drawings alone.
        size: Short side in pixels.
        frames: Number of frames.

    Returns:
        RGB frames (T, H, W, 3), uint8.
    """
    paths = (sources or {}).get(split, ())
    aspect = ASPECTS[rng.integers(len(ASPECTS))]
    shape = [round(size * max(1, side) / 2) * 2 for side in (1 / aspect, aspect)]
    exposures = int(rng.choice([1, 1, 2, 4]))  # per frame: motion blur
    shutter = rng.uniform(0.2, 1) * np.arange(exposures) / exposures
    time = ((np.arange(frames)[:, None] + shutter) / frames).ravel()

    footage = _footage(paths, rng, with_darts=name == "still")
    video = look(footage, poses(name, time, rng), shape, rng, exposures)
    if rng.uniform() < 0.4:
        motion = list(CLASSES)[rng.integers(len(CLASSES))]
        footage = _footage(paths, rng, with_darts=True)
        surface = look(footage, poses(motion, time, rng), shape, rng, exposures)
        mask = _object(time, shape, rng)
        video = video * (1 - mask) + surface * mask
    video = video.view(frames, exposures, 3, *shape).mean(1)
    return _expose(video, rng).permute(0, 2, 3, 1).numpy()


def poses(name: str, time: np.ndarray, rng: np.random.Generator) -> Pose:
    """Poses (T,) of the camera at `time` in [0, 1]: x, y (right and down), zoom and roll."""
    main, sign = CLASSES[name] or ("", 0)
    moved = AMOUNTS["x"][0]
    pose = {axis: _shake(time, _log_uniform(rng, 0.0005, 0.012), rng) for axis in LEVERS}
    if main:
        amount = _log_uniform(rng, *AMOUNTS[main])
        moved = amount * LEVERS[main]
        pose[main] += sign * amount * (_eased(time, rng) - rng.uniform())
    for axis in LEVERS.keys() - {main}:
        drift = rng.uniform(-0.25, 0.25) * moved / LEVERS[axis] * rng.integers(2)
        pose[axis] += drift * (_eased(time, rng) - 0.5)
    return pose


def _eased(time: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """From 0 to 1: between constant and smooth speed, starting and stopping inside the video."""
    start, stop = max(0, rng.uniform(-0.2, 0.25)), min(1, rng.uniform(0.75, 1.2))
    way = np.clip((time - start) / (stop - start), 0, 1)
    constant = rng.uniform()
    return constant * way + (1 - constant) * way * way * (3 - 2 * way)


def _shake(time: np.ndarray, amplitude: float, rng: np.random.Generator) -> np.ndarray:
    waves = np.arange(1, 6)[:, None]
    phases = waves * rng.uniform(0.7, 1.3, (5, 1)) * time + rng.uniform(size=(5, 1))
    return amplitude * (rng.normal(size=(5, 1)) / waves * np.sin(2 * np.pi * phases)).sum(0)


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def look(
    footage: Tensor, pose: Pose, shape: Sequence[int], rng: np.random.Generator, exposures: int = 1
) -> Tensor:
    """What the camera sees; beyond its borders, the footage is mirrored.

    Args:
        footage: RGB frames (N, 3, H, W), uint8; one for a picture. A video goes back and forth.
        pose: Of T exposures.
        shape: Height and width of the result.
        rng: Chooses the part of the footage.
        exposures: Number of exposures per frame of the footage.

    Returns:
        (T, 3, *shape), float, 0 to 255.
    """
    count, _, *sides = footage.shape
    order = rng.integers(count) + np.arange(len(pose["x"])) // exposures
    order = np.abs((order + count - 1) % max(2 * count - 2, 1) - (count - 1))
    used, order = np.unique(order, return_inverse=True)

    side = min(sides) * _log_uniform(rng, 0.25, 1)  # of the frame at zoom 0, in px of the footage
    nearest = side * math.exp(-pose["zoom"].max())
    reduced = min(1.0, OVERSAMPLING * min(shape) / nearest)
    seen = F.interpolate(
        footage[used].float(), scale_factor=reduced, mode="bilinear", antialias=True
    )
    middle = 0.5 + rng.uniform(-0.5, 0.5, 2) * (1 if count == 1 else 0.3)
    drawn = [OVERSAMPLING * length for length in shape]
    grid = _grid(pose, drawn, side / np.array(sides[::-1]), middle)
    drawn = F.grid_sample(seen[order], grid, padding_mode="reflection", align_corners=False)
    return F.avg_pool2d(drawn, OVERSAMPLING)


def _grid(pose: Pose, shape: Sequence[int], side: np.ndarray, middle: np.ndarray) -> Tensor:
    """Places (T, H, W, 2) in the footage, from -1 to 1, of the pixels of a frame.

    `side` is the frame's short side and `middle` its centre, both in (widths, heights) of the
    footage.
    """
    down, right = _coordinates(shape)
    x, y, zoom, roll = (pose[axis][:, None, None] for axis in LEVERS)
    near, cos, sin = np.exp(-zoom), np.cos(roll), np.sin(roll)
    places = np.stack(
        [x + near * (cos * right - sin * down), y + near * (sin * right + cos * down)], axis=-1
    )
    return torch.from_numpy(2 * (middle + side * places) - 1).float()


def _coordinates(shape: Sequence[int]) -> list[np.ndarray]:
    """Down and right of the frame's centre (H, W), in short sides."""
    axes = [(np.arange(length) + 0.5 - length / 2) / min(shape) for length in shape]
    return np.meshgrid(*axes, indexing="ij")


def _object(time: np.ndarray, shape: Sequence[int], rng: np.random.Generator) -> Tensor:
    """Mask (T, 1, H, W) of an ellipse that moves or stands, of 2 to 30 % of a square frame."""
    radius, slim = math.sqrt(rng.uniform(0.02, 0.3) / math.pi), _log_uniform(rng, 0.5, 2)
    ends = rng.uniform(-0.6, 0.6, (2, 2))
    ends[1] = ends[0] if rng.uniform() < 0.3 else ends[1]
    way = _eased(time, rng)[:, None] * (ends[1] - ends[0]) + ends[0]
    down, right = (
        axis - (way[:, k] + _shake(time, 0.02, rng))[:, None, None]
        for k, axis in enumerate(_coordinates(shape))
    )
    distance = np.hypot(right / slim, down * slim) / radius
    return torch.from_numpy(np.clip(6 * (1 - distance), 0, 1)).float()[:, None]


def _expose(video: Tensor, rng: np.random.Generator) -> Tensor:
    """Contrast, brightness, noise, and a light that changes; (T, 3, H, W) uint8."""
    video = 255 * (video / 255).clamp(0, 1) ** math.exp(0.3 * rng.normal())
    if rng.uniform() < 0.2:
        video = video.mean(1, keepdim=True).expand_as(video)
    video = (video - 128) * rng.uniform(0.5, 1.1) + 128 + rng.uniform(-25, 25)
    if rng.uniform() < 0.3:
        video = video * torch.linspace(1, 1 + rng.uniform(-0.3, 0.3), len(video)).view(-1, 1, 1, 1)
    noise = rng.standard_normal(video.shape, np.float32) * _log_uniform(rng, 0.3, 8)
    return (video + torch.from_numpy(noise)).clamp(0, 255).round().byte()


def _footage(paths: Sequence[str], rng: np.random.Generator, with_darts: bool) -> Tensor:
    """Frames (N, 3, H, W) uint8 of a drawing, a picture or a video."""
    kind = rng.uniform()
    if with_darts and kind > 0.85:
        name = motions.CLASSES[rng.integers(len(motions.CLASSES))]
        darts = motions.draw(name, size=96, frames=40, rng=rng)
        return torch.from_numpy(darts).permute(0, 3, 1, 2)
    pictures = [path for path in paths if path.lower().endswith(IMAGE_SUFFIXES)]
    videos = [path for path in paths if path not in pictures]
    chosen = pictures if kind < 0.6 else videos
    if kind < 0.3 or not chosen:
        return leaves(rng)
    footage = _read(chosen[rng.integers(len(chosen))])
    return _stretch(footage) if chosen is videos and rng.uniform() < 0.8 else footage


@cache
def _read(path: str) -> Tensor:
    """A picture or a video (N, 3, H, W), uint8, with a short side of at most `SIDE`."""
    if path.lower().endswith(IMAGE_SUFFIXES):
        from torchvision.io import ImageReadMode, decode_image  # its import takes two seconds

        footage = decode_image(path, ImageReadMode.RGB)[None]
    else:
        video = open_video(path)
        footage = video.read(range(len(video))).permute(0, 3, 1, 2)
    reduced = SIDE / min(footage.shape[-2:])
    if reduced < 1:
        footage = F.interpolate(footage, scale_factor=reduced, mode="bilinear", antialias=True)
    return footage


def _stretch(footage: Tensor) -> Tensor:
    """Dark or flat footage with the full range of brightness."""
    low, high = np.percentile(footage[0].numpy(), (1, 99))
    return ((footage.float() - low) * (255 / max(high - low, 20))).clamp(0, 255).byte()


def leaves(rng: np.random.Generator, side: int = SIDE, count: int = 220) -> Tensor:
    """A drawing (1, 3, side, side) uint8 of ellipses and rectangles that hide each other."""
    down, right = np.mgrid[:side, :side].astype(np.float32)
    drawing = np.empty((side, side, 3), np.float32)
    drawing[:] = rng.uniform(0, 255, 3)
    for _ in range(count):
        radius = side / 2 / math.sqrt(rng.uniform(1, 600))
        high, angle = radius * _log_uniform(rng, 0.4, 2.5), rng.uniform(0, math.pi)
        center, reach = rng.uniform(0, side, 2).tolist(), math.hypot(radius, high)
        near = tuple(slice(max(0, int(c - reach)), int(c + reach) + 2) for c in center[::-1])
        x, y = right[near] - center[0], down[near] - center[1]
        x, y = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
        is_ellipse = rng.uniform() < 0.6
        across, along = np.abs(x) / radius, np.abs(y) / high
        inside = np.hypot(across, along) < 1 if is_ellipse else np.maximum(across, along) < 1
        x, y = x[inside, None], y[inside, None]
        stripes = rng.uniform(0, 40) * np.sin(x * rng.uniform(0.05, 1.2))
        shading = rng.uniform(-60, 60) * y / high + rng.uniform(0, 25) * rng.normal(size=x.shape)
        drawing[near][inside] = rng.uniform(0, 255, 3) + stripes + shading
    return torch.from_numpy(drawing.clip(0, 255).astype(np.uint8)).permute(2, 0, 1)[None]


def _sources(folder: Path) -> dict[str, list[str]]:
    """Pictures and videos of each split.

    Raises:
        ValueError: a split has none.
    """
    suffixes = (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES)
    found = {}
    for split in SPLITS:
        part = folder / split
        files = visible(part) if part.is_dir() else []
        found[split] = [str(file) for file in files if file.name.lower().endswith(suffixes)]
        if not found[split]:
            raise ValueError(
                f"{part} has no pictures or videos; --sources is a folder with the folders "
                f"{' and '.join(SPLITS)}, whose footage differs"
            )
    return found


def _command(
    folder: Path,
    *,
    sources: Path | None = None,
    clips_per_class: tuple[int, int] = (400, 40),
    size: int = 48,
    frames: int = 40,
    seed: int = 0,
    workers: int = os.cpu_count() or 1,
) -> None:
    """Generate videos of a moving camera, with lists for training and testing.

    Args:
        folder: Where to write; it must be absent, empty, or hold the same data set.
        sources: Folder with pictures and videos that the camera looks at, in train and val;
            without it, drawings.
        clips_per_class: Videos for training and for testing.
        size: Short side in pixels, even.
        frames: Frames per video.
        seed: Seed of all randomness.
        workers: Processes.
    """
    train, val = clips_per_class
    found = _sources(sources) if sources else {}
    parameters = {
        "train_per_class": train,
        "val_per_class": val,
        "size": size,
        "frames": frames,
        "seed": seed,
        "format": FORMAT,
        "sources": {split: [Path(path).name for path in paths] for split, paths in found.items()},
    }
    drawn = partial(draw, sources=found, size=size, frames=frames)
    write(folder, parameters, [*CLASSES], drawn, workers, quantizers=(16, 33))
    print(f"{folder}: {len(CLASSES)} classes")


main = partial(run_command, "camera", _command)


if __name__ == "__main__":
    main()
