"""Films for benchmarks that cost what web videos cost to decode."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_film(path: Path, short_side: int, frames: int, gop: int, seed: int) -> None:
    """Write a film that costs what web videos cost: a texture that drifts, with noise.

    H.264 as x264 makes it by default, but for the length of its groups of pictures. At 256 x 340
    pixels and 250 frames per group a frame takes 2.4 KB; a clip of people that was encoded so took
    2.7 KB, and as long to decode.
    """
    import av

    generator = np.random.default_rng(seed)
    height = 2 * (short_side // 2)
    width = 2 * round(height * 4 / 3 / 2)
    scene = _texture(2 * height, 2 * width, generator)
    drift = np.cumsum(generator.normal(0, 4.0, (frames, 2)), axis=0)
    options = {"g": str(gop), "keyint_min": str(gop), "sc_threshold": "0", "crf": "23"}
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options=options | {"threads": "1"})
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for down, right in drift:
            top, left = (int(abs(x)) % room for x, room in ((down, height), (right, width)))
            image = scene[top : top + height, left : left + width]
            image = image + generator.normal(0, 6.0, (height, width, 1))
            pixels = np.clip(image, 0, 255).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def _texture(height: int, width: int, generator: np.random.Generator) -> np.ndarray:
    """RGB (height, width, 3) of 0 to 255 whose spectrum falls off as that of natural images."""
    down, right = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None]
    falloff = 1 / np.maximum(np.hypot(down, right), 1 / max(height, width)) ** 1.5
    noise = generator.normal(size=(3, height, width))
    planes = np.fft.ifft2(np.fft.fft2(noise) * falloff).real
    planes = (planes - planes.mean()) / planes.std()
    return np.clip(128 + 50 * planes, 0, 255).transpose(1, 2, 0)
