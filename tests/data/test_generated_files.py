"""Files of many containers and codecs, some with wrong marks and times.

Frames by index equal those that PyAV decodes in order, and times have the rate of the file.
`FFN_GENERATED_FILES` is the number of random files.
"""

from __future__ import annotations

import os
import random
from contextlib import suppress

import av
import numpy as np
import pytest

from ffn.data import VideoError, open_video, probe

FILES = int(os.environ.get("FFN_GENERATED_FILES", "24"))
X264 = ({"g": "8", "bf": "2"}, {"g": "999", "bf": "3"}, {"x264-params": "keyint=9:open-gop=1"})
X264 += ({"x264-params": "keyint=9:intra-refresh=1"}, {"flags": "+ildct+ilme"})
X265 = [{"x265-params": f"log-level=none:{o}"} for o in ("keyint=8", "keyint=8:open-gop=0", "")]
MPEG = ({"g": "8", "bf": "2", "b": "4M"}, {"g": "999", "bf": "0", "b": "4M"})
VPX = ({"g": "8", "b": "2M"}, {"g": "999", "b": "2M", "auto-alt-ref": "1", "lag-in-frames": "16"})
CODECS = {  # containers, pixels, options of the encoder
    "libx264": ("mp4 mov 3gp mkv avi flv ts h264", "yuv420p yuv444p yuv420p10le", X264),
    "libx265": ("mp4 mov mkv ts hevc", "yuv420p yuv420p10le", X265),
    "mpeg4": ("mp4 mov 3gp mkv avi ts m4v", "yuv420p", (*MPEG, {"flags": "+qpel+mv4"})),
    "h263": ("3gp mov avi", "yuv420p", ({"g": "999"}, {"g": "8"})),
    "mpeg1video": ("mpg avi ts mpeg1video", "yuv420p", MPEG),
    "mpeg2video": ("mpg vob mkv avi ts mpeg2video", "yuv420p yuv422p", MPEG),
    "libvpx": ("webm mkv ivf ogg", "yuv420p", VPX),
    "libvpx-vp9": ("webm mp4 ivf", "yuv420p", VPX),
    "libsvtav1": ("mp4 mkv webm ivf", "yuv420p yuv420p10le", ({"g": "8", "preset": "12"},)),
    "ffv1": ("mkv avi", "yuv420p gray bgr0 yuv444p16le", ({"g": "9", "level": "3"}, {"g": "1"})),
    "mjpeg": ("mov mkv avi", "yuvj420p yuvj444p", ({},)),
    "prores_ks": ("mov mkv", "yuv422p10le yuv444p10le", ({},)),
    "flv": ("flv", "yuv420p", MPEG[1:]),
    "gif": ("gif", "rgb8", ({},)),
}
FORMATS = {"ts": "mpegts", "mpg": "mpeg", "mkv": "matroska"}
MARKED, ROTATED = "mp4 mov 3gp mkv webm flv", "mp4 mov 3gp mkv"
HEADERS = {"ivf": 32, "flv": 13}  # bytes before the first packet
RESTARTED = "ts mpg vob ivf flv m4v h264 hevc mpeg1video mpeg2video"
CASES = (  # one of each kind
    ("mpeg4", "mp4", "marks"), ("h263", "3gp", "marks"), ("libx264", "mkv", "marks"),
    ("libx264", "mp4", "decoding times"), ("mpeg4", "avi", ""), ("libx264", "h264", ""),
    ("libx264", "ts", "restart"), ("mpeg2video", "mpg", "restart"), ("libvpx", "ivf", "restart"),
    ("libx264", "ts", "jump"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def usual_scheduling():
    """SVT-AV1 gives the process of root a real-time priority, which starves later processes."""
    yield
    if hasattr(os, "sched_setscheduler"):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def write(path, rng, codec, container, pixels, options, fault, rate=25, frames=40, rotation=0):
    """Write a video of a texture that moves, with a fault of its marks or its times."""
    width, height = rng.choice([(128, 96), (176, 144)] + [(64, 48), (100, 68)] * (codec != "h263"))
    if ("444" in pixels or "bgr" in pixels) and "flags" not in options:
        width, height = width - 1, height - 1
    texture = np.frombuffer(rng.randbytes(22 * 22 * 3), np.uint8).reshape(22, 22, 3)
    texture = texture.repeat(8, 0).repeat(8, 1)[:height, :width]
    fixed = {"fflags": "+bitexact"} | ({"output_ts_offset": "3600"} if fault == "late" else {})
    with av.open(str(path), "w", FORMATS.get(container, container), options=fixed) as output:
        stream = output.add_stream(codec, rate=rate, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        if rotation and container in ROTATED.split():
            stream.set_display_rotation(rotation)
        shown = [np.roll(texture, (2 * i, 3 * i), (0, 1)) for i in range(frames)]
        packets = [p for s in shown for p in stream.encode(av.VideoFrame.from_ndarray(s))]
        for number, packet in enumerate([*packets, *stream.encode()]):
            if fault == "marks":
                packet.is_keyframe = number % 7 == 0
            elif fault == "decoding times":
                packet.dts += round(3 / rate / packet.time_base)
                packet.pts = packet.dts
            output.mux(packet)


def make(folder, seed, codec, container, pixels, options, fault, **more):
    """Write a file; a clock restarts or jumps where two files are joined."""
    path = folder / f"a.{container}"
    write(path, random.Random(seed), codec, container, pixels, options, fault, **more)
    if fault in ("restart", "jump"):
        first, second = path.read_bytes(), "late" if fault == "jump" else ""
        write(path, random.Random(seed), codec, container, pixels, options, second, **more)
        path.write_bytes(first + path.read_bytes()[HEADERS.get(container, 0) :])
    return path


def check(path, rate, seed=0):
    """Compare frames and times with those of decoding in order."""
    with av.open(str(path)) as container:
        frames = container.decode(video=0)
        shown = [np.rot90(f.to_ndarray(format="rgb24"), f.rotation // 90) for f in frames]
    indices, rng = range(len(shown)), random.Random(seed)
    orders = [[0], indices[::-1], *([i] for i in rng.sample(indices, 6)), rng.choices(indices, k=8)]
    for decoder in ("auto", "decord"):
        with suppress(VideoError if decoder == "decord" else ()):  # it may refuse a file
            video = open_video(path, decoder=decoder)
            assert len(video) == len(shown)
            for order in orders:
                assert np.array_equal(video.read(order), [shown[i] for i in order]), decoder
    video = open_video(path)
    assert (np.diff(video.times) > 0).all()
    assert probe(path).fps == pytest.approx(rate, rel=0.03)
    assert len(video.between(0, 20 / rate)) in (20, 21)


@pytest.mark.parametrize(("codec", "container", "fault"), CASES)
def test_frames_and_times_of_each_kind(codec, container, fault, tmp_path):
    options = CODECS[codec][2][0]
    if fault == "marks":
        options = {**options, "g": "999", "bf": "0"}
    check(make(tmp_path, 0, codec, container, "yuv420p", options, fault), 25)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FILES))
def test_frames_and_times_of_random_files(seed, tmp_path):
    rng = random.Random(seed)
    codec = rng.choice([*CODECS, "libx264", "libx265", "mpeg4", "h263"])
    containers, pixels, options = CODECS[codec]
    container, rate = rng.choice(containers.split()), rng.choice([25, 30])
    faults = ["", *["marks", "decoding times"] * (container in MARKED.split())]
    faults += ["restart"] * 2 * (container in RESTARTED.split())
    more = {"frames": rng.choice([24, 60]), "rotation": rng.choice([0, 90, 180, 270])}
    given = codec, container, rng.choice(pixels.split()), rng.choice(options), rng.choice(faults)
    check(make(tmp_path, seed, *given, rate=rate, **more), rate, seed)
