"""Fixtures: ten lossless videos to pack."""

import numpy as np
import pytest

from ffn.data import Record


def write_waves(path, seed, *, frames=12, width=64, height=48):
    """A lossless video of smooth waves, another phase for every frame."""
    import av

    generator = np.random.default_rng(seed)
    phases = generator.uniform(0, 6, (frames, 1, 1, 3))
    down, right = np.mgrid[:height, :width][..., None] / 12
    images = 128 + 60 * np.sin(down + phases) + 60 * np.cos(right * (1 + seed / 5) + phases)
    with av.open(str(path), "w") as output:
        video = output.add_stream("ffv1", rate=25)
        video.width, video.height, video.pix_fmt = width, height, "bgr0"
        for pixels in np.clip(images, 0, 255).astype(np.uint8):
            output.mux(video.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        output.mux(video.encode())
    return str(path)


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """Folder of the videos to pack."""
    return tmp_path_factory.mktemp("set")


@pytest.fixture(scope="session")
def records(root):
    """Ten videos of twelve frames, `videos/0.mkv`, …; the number is the label."""
    (root / "videos").mkdir()
    return [Record(write_waves(root / f"videos/{i}.mkv", seed=i), i) for i in range(10)]
