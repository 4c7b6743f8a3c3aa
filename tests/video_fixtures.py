"""Videos with the frame number in their pixels: frame i is gray with brightness 20 + 4 i."""

from __future__ import annotations

import numpy as np
import pytest

# Every option of a training transform.
AUGMENTATIONS = {
    "crop_mode": "resized",
    "flip": "random",
    "color_jitter": (0.4, 0.4, 0.4, 0.1),
    "randaugment": "rand-m7-n4-mstd0.5-inc1",
    "random_erasing": 0.5,
}


def shade(number: int) -> int:
    return 20 + 4 * number


@pytest.fixture(scope="session")
def write_video():
    """Function that writes a video file of numbered frames with PyAV and returns its path."""
    import av

    def write(
        path,
        frames=20,
        *,
        width=64,
        height=48,
        rate=25,
        codec="libx264",
        stream=None,
        container=None,
        late=0,
        rotation=0,
        halves=False,
        pixels="yuv420p",
    ):
        """`late`: frames by which all times are moved; `stream`, `container`: FFmpeg's options.

        With `halves` the left half of a frame is darker by 12.
        """
        fixed = {"fflags": "+bitexact"}  # no random identifiers in mkv and webm
        with av.open(str(path), "w", options=fixed | (container or {})) as output:
            video = output.add_stream(codec, rate=rate, options=stream or {"g": "8", "bf": "2"})
            video.width, video.height, video.pix_fmt = width, height, pixels
            if rotation:
                video.set_display_rotation(rotation)
            packets = []
            for i in range(frames):
                image = np.full((height, width, 3), shade(i), dtype=np.uint8)
                image[:, : width // 2] -= 12 if halves else 0
                frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                frame.pts = i
                packets += video.encode(frame)
            for packet in packets + video.encode():
                ticks = round(late / rate / packet.time_base)
                packet.pts, packet.dts = packet.pts + ticks, packet.dts + ticks
                output.mux(packet)
        return str(path)

    return write


@pytest.fixture(scope="session")
def write_folder():
    """Function that writes numbered frames as images, from `first` on, and returns the folder."""
    image = pytest.importorskip("PIL.Image")

    def write(path, frames=10, *, first=1, pattern="{:05d}.jpg", size=(64, 48)):
        path.mkdir(parents=True)
        for i in range(frames):
            image.new("RGB", size, (shade(i),) * 3).save(path / pattern.format(first + i))
        return str(path)

    return write


@pytest.fixture(scope="session")
def numbers():
    """Function that reads the frame numbers back from uint8 frames (N, H, W, 3)."""

    def read(frames):
        means = frames.double().flatten(1).mean(1)
        found = ((means - shade(0)) / 4).round()
        spread = (frames.double().flatten(1) - means[:, None]).abs().max()
        assert spread < 3, f"frames are not plain: {spread}"
        return found.int().tolist()

    return read
