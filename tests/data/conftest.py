"""Fixtures: ten lossless videos to pack."""

import numpy as np
import pytest
from serve_files import write_video

from ffn.data import Record


def write_waves(path, seed, *, frames=12, width=64, height=48):
    """A lossless video of smooth waves, another phase for every frame."""
    generator = np.random.default_rng(seed)
    phases = generator.uniform(0, 6, (frames, 1, 1, 3))
    down, right = np.mgrid[:height, :width][..., None] / 12
    images = 128 + 60 * np.sin(down + phases) + 60 * np.cos(right * (1 + seed / 5) + phases)
    return str(write_video(path, images.clip(0, 255).astype(np.uint8), rate=25, codec="ffv1"))


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """Folder of the videos to pack."""
    return tmp_path_factory.mktemp("set")


@pytest.fixture(scope="session")
def records(root):
    """Ten videos of twelve frames, `videos/0.mkv`, …; the number is the label."""
    (root / "videos").mkdir()
    return [Record(write_waves(root / f"videos/{i}.mkv", seed=i), i) for i in range(10)]
