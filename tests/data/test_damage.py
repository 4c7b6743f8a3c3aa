"""Damaged files: a frame equals FFmpeg's frame at the same time, or an error is raised.

The oracle decodes the same damaged file from its first frame, with FFmpeg's default error
tolerance, and identifies frames by their times; by their positions in a file that is not seekable.
"""

from __future__ import annotations

from contextlib import suppress

import av
import numpy as np
import pytest

from ffn.data import VideoError, open_video

FRAMES = 40
FILES = {
    **{
        f"h264 gop {gop} bf {bf}": ("a.mp4", {"stream": {"g": str(gop), "bf": str(bf)}})
        for gop in (1, 8, 250)
        for bf in (0, 3)
    },
    "h264 open": ("a.mp4", {"stream": {"g": "8", "bf": "3", "x264-params": "open-gop=1"}}),
    "h264 faststart": ("a.mp4", {"container": {"movflags": "faststart"}}),
    "h264 fragmented": ("a.mp4", {"container": {"movflags": "frag_keyframe+empty_moov"}}),
    "h264 mkv": ("a.mkv", {}),
    "h264 mov": ("a.mov", {}),
    "h264 ts": ("a.ts", {}),
    "h264 avi": ("a.avi", {}),
    "hevc": ("a.mp4", {"codec": "libx265", "stream": {"x265-params": "keyint=8:log-level=none"}}),
    "mpeg4 mp4": ("a.mp4", {"codec": "mpeg4", "stream": {"bf": "2", "b": "4M"}}),
    "mpeg4 avi": ("a.avi", {"codec": "mpeg4", "stream": {"b": "4M"}}),
    "mpeg2": ("a.mpg", {"codec": "mpeg2video", "stream": {"bf": "2", "g": "8", "b": "4M"}}),
    "mjpeg": ("a.avi", {"codec": "mjpeg", "stream": {"b": "4M"}, "pixels": "yuvj420p"}),
    "vp8": ("a.webm", {"codec": "libvpx", "stream": {"b": "4M"}}),
    "vp9": ("a.webm", {"codec": "libvpx-vp9", "stream": {"b": "1M", "cpu-used": "8"}}),
}


def noise(data, rng, size):
    """Overwrite `size` bytes somewhere by random ones."""
    start = int(rng.integers(64, max(65, len(data) - size)))
    return data[:start] + rng.bytes(size) + data[start + size :]


def moved(data, rng, parts):
    """Parts of the file, which is divided at two random places, in another order or number."""
    first = int(rng.integers(len(data) // 4, len(data) // 2))
    second = first + max(1, len(data) // 10)
    pieces = data[:first], data[first:second], data[second:]
    return b"".join(pieces[i] for i in parts)


DAMAGE = {
    "none": lambda data, rng: data,
    "empty": lambda data, rng: b"",
    "first 100 bytes": lambda data, rng: data[:100],
    "first 60 %": lambda data, rng: data[: len(data) * 6 // 10],
    "last 2 % lost": lambda data, rng: data[: len(data) * 98 // 100],
    "first 64 bytes zero": lambda data, rng: bytes(64) + data[64:],
    "16 bytes": lambda data, rng: noise(data, rng, 16),
    "400 bytes": lambda data, rng: noise(data, rng, 400),
    "last KiB random": lambda data, rng: data[:-1024] + rng.bytes(1024),
    "second half zero": lambda data, rng: data[: len(data) // 2].ljust(len(data), b"\0"),
    "a tenth lost": lambda data, rng: moved(data, rng, (0, 2)),
    "two parts swapped": lambda data, rng: moved(data, rng, (0, 2, 1)),
    "garbage behind": lambda data, rng: data + rng.bytes(5000),
}


FATAL = {"empty", "first 100 bytes"}  # no file of `FILES` has a readable frame after these


@pytest.fixture(scope="module")
def whole(write_video, tmp_path_factory):
    """The bytes of each undamaged file."""
    folder = tmp_path_factory.mktemp("whole")
    files = {}
    for kind, (name, options) in FILES.items():
        path = folder / f"{len(files)}{name}"
        write_video(path, FRAMES, **options)
        files[kind] = path.read_bytes()
    return files


def shown(path):
    """Time and pixels of all frames, as FFmpeg decodes them despite damage.

    After an error, decoding continues with the next packet.
    """
    images = []
    try:
        container = av.open(path, metadata_errors="ignore")
    except (av.error.FFmpegError, ValueError):
        return images
    with container:
        stream = container.streams.best("video")
        if stream is None or stream.codec_context is None:  # PyAV 17 would crash on the latter
            return images
        stream.thread_type = "NONE"
        packets = container.demux(stream)
        while True:
            try:
                packet = next(packets)
            except (StopIteration, av.error.FFmpegError, ValueError):
                return images
            try:
                frames = packet.decode()
            except (av.error.FFmpegError, ValueError):
                continue
            images += [(frame.pts, frame.to_ndarray(format="rgb24")) for frame in frames]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_give_frames_of_ffmpeg_or_errors(damage, whole, tmp_path):
    same, refused = 0, []
    for number, (kind, data) in enumerate(whole.items()):
        rng = np.random.default_rng([number, list(DAMAGE).index(damage)])
        path = tmp_path / f"{number}{FILES[kind][0]}"
        path.write_bytes(DAMAGE[damage](data, rng))
        expected = shown(str(path))
        try:
            video = open_video(path)
            timeline = video.timeline
        except VideoError as error:
            refused.append((path.name, str(error)))
            continue
        assert damage != "none" or len(expected) == len(video) == FRAMES
        for index in sorted({0, len(video) - 1, len(video) // 2, len(video) // 3}):
            with suppress(VideoError):
                frame = video.read([index])[0].numpy()
                images = [image for time, image in expected if time == timeline.times[index]]
                if timeline.not_seekable:
                    images = [expected[index][1]]
                assert any(np.array_equal(frame, image) for image in images), (kind, index)
                same += 1
    assert all(name in message for name, message in refused)
    assert (same > 0) == (damage not in FATAL)
