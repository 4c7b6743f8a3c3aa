"""Draw the videos of the generated data set: a moving dart whose motion is the class.

The subject, a bright dart, moves over a textured background; its motion is the class (`CLASSES`).
Its position (frames wrap around at their borders), heading and size phase start uniformly at
random, and a class only adds to them. A single frame therefore has the same distribution for every
class, and a network that sees one frame stays at chance. Distractors are a decoy (a bluish dart
with the motion of a random class), texture, noise, brightness flicker and camera jitter. In a third
of the videos the decoy looks like the subject, which bounds the accuracy at about 85 %.

The number of frames that a class needs follows from sampling. Four evenly spaced frames show the
order of movements and, with less than half a turn between two frames, the direction of rotation.
Pulsing once and three times look the same below 8 frames, swaying three and five times below 16.
Backgrounds hardly differ between videos; otherwise a network would memorise them.

A change that draws other videos must increase `ffn.datasets.synthetic.FORMAT`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

ALIKE = 1 / 3  # fraction of videos with a decoy that looks like the subject

Offsets = dict[str, np.ndarray]
Motion = Callable[[np.ndarray, np.random.Generator], Offsets]


# Motions: offsets of the dart's x and y (in frame sides, right and down), heading
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
    """Pose of the dart at each `time`: random start, a small drift, and the motion of a class."""
    start, drift = rng.uniform(size=4), np.append(rng.uniform(-0.08, 0.08, size=3), 0.0)
    motion = MOTIONS[name](time, rng)
    return {
        key: start[i] + drift[i] * time + motion.get(key, 0.0)
        for i, key in enumerate(("x", "y", "heading", "size"))
    }


# Drawing. A grid holds the x and y of every pixel of every frame, in pixels, two arrays (T, H, W).


def _wrapped(distance: np.ndarray, size: int) -> np.ndarray:
    """The shortest distance in pixels in frames that wrap around at their borders."""
    return (distance + size / 2) % size - size / 2


def _column(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)[:, None, None]  # (T, 1, 1)


def _dart(grid: tuple[np.ndarray, np.ndarray], pose: Offsets, size: int) -> np.ndarray:
    """Coverage of each pixel by the dart in [0, 1], (T, H, W); the tip points in its heading."""
    right = _wrapped(grid[0] - _column(size * pose["x"]), size)
    down = _wrapped(grid[1] - _column(size * pose["y"]), size)
    heading = 2 * np.pi * pose["heading"]
    cos, sin = _column(np.cos(heading)), _column(np.sin(heading))
    length = _column(0.15 * size * 1.6 ** -np.cos(2 * np.pi * pose["size"]))
    along, across = right * cos + down * sin, np.abs(down * cos - right * sin)
    outside = np.maximum(-along - length, 0.33 * (along - length) + 0.944 * across)  # pixels
    return np.clip(0.5 - outside, 0, 1)


def draw(name: str, *, size: int, frames: int, rng: np.random.Generator) -> np.ndarray:
    """Draw one video of a class: uint8 RGB frames (T, size, size, 3).

    Args:
        name: Class, one of `CLASSES`.
        size: Height and width in pixels.
        frames: Number of frames T.
        rng: Source of all randomness.
    """
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
    background = rng.uniform(85, 95) + rng.normal(0, 2, size=3)
    contrast = rng.uniform(100, 130)
    yellow, blue = contrast * np.array([1, 1, 0.6]), contrast * np.array([0.2, 0.4, 0.7])
    alike = rng.uniform() < ALIKE
    decoy = _poses(CLASSES[rng.integers(len(CLASSES))], time, rng)
    objects = [
        (_dart(grid, pose, size), background + yellow),
        (_dart(grid, decoy, size), background + (yellow if alike else blue)),
    ]
    if rng.uniform() < 0.5:  # which one passes in front
        objects.reverse()

    video = background.astype(np.float32) + texture[..., None]  # (T, H, W, 3)
    for cover, color in objects:
        video += cover[..., None] * (color.astype(np.float32) + texture[..., None] / 2 - video)
    video *= _column(rng.normal(1, 0.03, size=frames))[..., None]
    video += 5 * rng.standard_normal(video.shape, dtype=np.float32)
    return np.clip(np.rint(video), 0, 255).astype(np.uint8)
