"""Generate short mp4 videos of a drawn mouth that spells three words, a shape for each letter.

    python -m ffn.datasets.spelling data/spelling

The lists have the columns path, frames and text; no text is in both. Error rates on it, a set for
tests and the quickstart, do not transfer to real mouths.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ffn.datasets.synthetic import Job, run_command, write
from ffn.files import write_csv

WORDS = ("alas", "also", "loom", "lose", "mama", "meal", "mole", "sale", "seal", "some")
# Width and height of the mouth in frame sides, and brightness inside it.
SHAPES = {"a": (0.56, 0.5, 0.1), "e": (0.72, 0.26, 0.1), "l": (0.6, 0.4, 0.75)}
SHAPES |= {"m": (0.52, 0.04, 0.1), "o": (0.34, 0.46, 0.1), "s": (0.68, 0.16, 1.0)}
SHAPES |= {" ": (0.5, 0.12, 0.3)}


def generate(
    folder: str | Path, *, train: int = 400, val: int = 120, frames: int = 48, size: int = 28
) -> Path:
    """Write videos for training and validation, see `ffn.datasets.synthetic.write`."""
    parameters = {"train": train, "val": val, "frames": frames, "size": size, "format": 1}
    return write(folder, parameters, (), partial(draw, frames, size), write_lists=_write_lists)


def _write_lists(folder: Path, parameters: dict[str, Any], _: object) -> list[Job]:
    texts = np.random.default_rng(0).permutation([" ".join(p) for p in product(WORDS, repeat=3)])
    jobs: list[Job] = []
    for split in ("train", "val"):
        chosen = texts[len(jobs) : len(jobs) + parameters[split]].tolist()
        paths = [f"videos/{split}_{number:04d}.mp4" for number in range(len(chosen))]
        rows = zip(paths, [parameters["frames"]] * len(paths), chosen, strict=True)
        write_csv(folder / f"{split}.csv", [("path", "frames", "text"), *rows])
        for path, text in zip(paths, chosen, strict=True):
            jobs.append((folder / path, text, split, [len(jobs)]))
    return jobs


def draw(frames: int, size: int, text: str, split: str, rng: np.random.Generator) -> np.ndarray:
    """Draw a video (T, H, W, 3) of a text; letters have different lengths, and blend."""
    letters = f" {text} "
    ends = rng.uniform(0.6, 1.4, len(letters)).cumsum()
    time = (np.arange(frames) + 0.5) / frames * ends[-1]
    middles = ends - np.diff(ends, prepend=0) / 2
    shapes = zip(*(SHAPES[letter] for letter in letters), strict=True)
    width, height, inside = (np.interp(time, middles, s)[:, None, None] for s in shapes)

    y, x = (np.mgrid[:size, :size] + 0.5) / size - 0.5
    x = x - rng.uniform(-0.05, 0.05) - rng.normal(0, 0.008, (frames, 1, 1))
    y = y - rng.uniform(-0.05, 0.05) - rng.normal(0, 0.008, (frames, 1, 1))
    scale = rng.uniform(0.45, 0.55)
    opening = np.hypot(x / (scale * width), y / (scale * height)) < 1
    mouth = np.hypot(x / (scale * width + 0.08), y / (scale * height + 0.1)) < 1
    gray = np.where(opening, inside, np.where(mouth, 0.5, 0.7))
    color = np.stack([gray, np.where(mouth & ~opening, 0.25, gray), 0.9 * gray], -1)
    color = color * rng.uniform(0.85, 1.15) + rng.normal(0, 0.05, color.shape)
    return np.clip(255 * color, 0, 255).astype(np.uint8)


def _command(folder: Path) -> None:
    """Generate videos of a mouth that spells words, with lists for training and testing.

    Args:
        folder: Where to write; it must be absent, empty, or hold the same data set.
    """
    print(generate(folder))


if __name__ == "__main__":
    run_command("ffn.datasets.spelling", _command)
