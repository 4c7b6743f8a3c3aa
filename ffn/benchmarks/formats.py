"""The same videos in several formats: video files, a folder of JPEG files each, clip stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from ffn.data import ClipStore, Record, open_video, pack, read_annotations
from ffn.data.decoding import FrameFolder, Video


@dataclass(frozen=True)
class VideoFormat:
    """Videos in one format.

    Attributes:
        name: in tables.
        records: the videos.
        open: opens the video of a record.
        mib: mean size of a video.
    """

    name: str
    records: list[Record]
    open: Callable[[Record], Video]
    mib: float


def listed_videos(annotations: Path, root: Path | None, limit: int) -> VideoFormat:
    """The videos of an annotation list, as they are.

    Args:
        annotations: list of videos, or a folder with one sub-folder per class.
        root: folder of the paths in the list.
        limit: maximum number of videos, taken from the start of the list.
    """
    records = read_annotations(annotations, root=root)[0]
    return _as_files("videos", records[:limit])


def generated_videos(
    folder: Path, *, number: int, short_side: int, frames: int, gop: int
) -> VideoFormat:
    """Write mp4 files into a folder; see :func:`write_video`.

    Args:
        folder: must not exist.
        number: of videos.
        short_side: height in pixels.
        frames: per video.
        gop: frames per group of pictures.
    """
    folder.mkdir(parents=True)
    paths = [folder / f"{seed}.mp4" for seed in range(number)]
    for seed, path in enumerate(paths):
        write_video(path, short_side, frames, gop, seed)
    return _as_files(f"mp4, GOP {gop}", [Record(str(path), 0) for path in paths])


def converted(videos: VideoFormat, folder: Path, short_side: int) -> list[VideoFormat]:
    """Write videos as folders of JPEG files and as clip stores.

    Args:
        videos: the originals.
        folder: the copies are written there.
        short_side: maximum length of the shorter side in pixels.

    Returns:
        The formats "JPEG files", "store, JPEG" and "store, raw".

    Raises:
        ValueError: a video cannot be decoded.
    """
    stores = []
    for name, form in (("store, JPEG", "jpeg"), ("store, raw", "raw")):
        report = pack(videos.records, folder / form, format=form, short_side=short_side)
        if report.unreadable:
            first = report.unreadable[0]
            raise ValueError(
                f"{len(report.unreadable)} of {len(videos.records)} videos cannot be decoded, "
                f"first {first.key}: {first.reason}; leave them out of the list"
            )
        store = ClipStore(folder / form)
        mib = report.bytes / len(videos.records) / 2**20
        stores.append(VideoFormat(name, videos.records, store.open_record, mib))
    return [_as_images(stores[1], folder / "images"), *stores]


def write_video(path: Path, short_side: int, frames: int, gop: int, seed: int) -> None:
    """Write a video that costs as much to decode as a web video: a moving texture with noise.

    The encoder is x264 with its default settings, except for the length of the groups of pictures.
    At 256 x 340 pixels and 250 frames per group a frame takes 2.4 KB; a video of people, encoded
    with the same settings, takes 2.7 KB per frame and the same decoding time.

    Args:
        path: an mp4 file.
        short_side: height in pixels; the width is 4/3 of it.
        frames: of the video.
        gop: frames per group of pictures.
        seed: of the texture, its motion and the noise.
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
            top, left = (int(abs(x)) % most for x, most in ((down, height), (right, width)))
            image = scene[top : top + height, left : left + width]
            image = image + generator.normal(0, 6.0, (height, width, 1))
            pixels = np.clip(image, 0, 255).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def _texture(height: int, width: int, generator: np.random.Generator) -> np.ndarray:
    """RGB (height, width, 3) from 0 to 255 with the spectrum of natural images."""
    down, right = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None]
    falloff = 1 / np.maximum(np.hypot(down, right), 1 / max(height, width)) ** 1.5
    noise = generator.normal(size=(3, height, width))
    planes = np.fft.ifft2(np.fft.fft2(noise) * falloff).real
    planes = (planes - planes.mean()) / planes.std()
    return np.clip(128 + 50 * planes, 0, 255).transpose(1, 2, 0)


def _as_files(name: str, records: Sequence[Record]) -> VideoFormat:
    """Video files or folders of frames, opened by their path."""
    size = sum(_size(Path(record.path)) for record in records)
    return VideoFormat(
        name,
        list(records),
        lambda record: open_video(record.path, frames=record.frames),
        size / len(records) / 2**20,
    )


def _size(path: Path) -> int:
    """Bytes of a file, or of the files in a folder."""
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def _as_images(raw: VideoFormat, folder: Path) -> VideoFormat:
    """Write every frame of a raw store as a JPEG file of the quality of the JPEG store."""
    records = []
    for number, record in enumerate(raw.records):
        path = folder / str(number)
        path.mkdir(parents=True)
        stored = raw.open(record)
        for index in range(len(stored)):
            image = Image.fromarray(stored.read([index])[0].numpy())
            image.save(path / f"{index + 1:05d}.jpg", quality=90)
        records.append(Record(str(path), record.label, len(stored)))
    size = sum(_size(Path(record.path)) for record in records)
    return VideoFormat(
        "JPEG files",
        records,
        lambda record: FrameFolder(record.path, frames=record.frames),
        size / len(records) / 2**20,
    )
