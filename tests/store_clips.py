"""Small packed data sets that the tests of the clip store share."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ffn.data import Record


def write_wave_video(
    path: Path, frames: int, *, width: int = 64, height: int = 48, seed: int = 0
) -> str:
    """A lossless video of smooth waves, another phase for every frame."""
    import av

    generator = np.random.default_rng(seed)
    phases = generator.uniform(0, 6, (frames, 1, 1, 3))
    down, right = np.mgrid[:height, :width][..., None] / 12
    images = 128 + 60 * np.sin(down + phases) + 60 * np.cos(right * (1 + seed / 5) + phases)
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as output:
        video = output.add_stream("ffv1", rate=25)
        video.width, video.height, video.pix_fmt = width, height, "bgr0"
        for pixels in np.clip(images, 0, 255).astype(np.uint8):
            output.mux(video.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        output.mux(video.encode())
    return str(path)


def write_set(root: Path, clips: int = 8, frames: int = 12) -> list[Record]:
    """Videos `videos/0.mkv`, … under a root; the number is the label."""
    return [
        Record(write_wave_video(root / "videos" / f"{i}.mkv", frames, seed=i), i)
        for i in range(clips)
    ]
