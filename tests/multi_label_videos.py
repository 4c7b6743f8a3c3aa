"""Videos with two independent motions, each of which may be absent: any number of labels."""

from __future__ import annotations

import csv
from itertools import product
from pathlib import Path

import numpy as np

CLASSES = ("pulse", "slide", "tint")


def write_multi_label_videos(folder: Path, *, train: int = 24, val: int = 16) -> Path:
    """Write mp4 files of 12 frames, 32 x 32, and csv lists with the columns path and labels.

    In the upper half a grating moves right (slide) or stands still; in the lower half the
    brightness swings (pulse) or not; the picture is reddish (tint) or gray. All combinations occur
    equally often, so that no class tells another.
    """
    from serve_files import write_video

    rng = np.random.default_rng(0)
    combinations = list(product((False, True), repeat=len(CLASSES)))
    y, x = np.mgrid[:32, :32]
    for name, number in (("train", train), ("val", val)):
        rows = []
        for i in range(number):
            present = dict(zip(CLASSES, combinations[i % len(combinations)], strict=True))
            phases, path = rng.uniform(0, 2 * np.pi, 2), f"{name}_{i}.mp4"
            t = np.arange(12)[:, None, None]
            wave = np.sin(0.8 * x + phases[0] - 1.2 * present["slide"] * t)
            swing = np.sin(phases[1] + 1.5 * present["pulse"] * t)
            pixels = np.repeat((110 + 90 * np.where(y < 16, wave, swing))[..., None], 3, 3)
            pixels[..., 0] += 45 * present["tint"]
            pixels = pixels.clip(0, 255).astype(np.uint8)
            write_video(folder / path, pixels, rate=12, codec="libx264")
            rows.append((path, "|".join(label for label in CLASSES if present[label])))
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("path", "labels"), *rows])
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    return folder
