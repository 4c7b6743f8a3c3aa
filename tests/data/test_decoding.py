"""Frames by index from files of many formats, and from folders of images."""

from __future__ import annotations

import gc
import os
import re
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
import torch
from av.stream import Disposition
from PIL import Image
from video_fixtures import shade

from ffn.data import VideoError, open_video, probe
from ffn.data.decoding import container
from ffn.data.decoding.clock import ascending, joined

X264 = {"g": "8", "bf": "3"}
FORMATS = {
    "mp4": ("a.mp4", {}),
    "open groups": ("a.mp4", {"stream": {**X264, "x264-params": "open-gop=1:keyint=8"}}),
    "fragmented": ("a.mp4", {"container": {"movflags": "frag_keyframe+empty_moov"}}),
    "starts late": ("a.mp4", {"late": 40}),
    "one keyframe": ("a.mp4", {"stream": {"g": "1000", "bf": "3"}}),
    "mkv": ("a.mkv", {}),
    "avi": ("a.avi", {}),
    "flv": ("a.flv", {}),
    "mpeg4": ("a.mp4", {"codec": "mpeg4", "stream": {"bf": "2", "b": "4M"}}),
    "vp8": ("a.webm", {"codec": "libvpx", "stream": {"b": "4M"}}),
    "hevc": ("a.mp4", {"codec": "libx265", "stream": {"x265-params": "keyint=8:log-level=none"}}),
    "mpeg2": ("a.mpg", {"codec": "mpeg2video", "stream": {"bf": "2", "g": "8", "b": "4M"}}),
    "ts": ("a.ts", {}),
    "name": ("with space é %d.mp4", {}),
    **{
        f"{width} wide": ("a.mp4", {"width": width, "stream": {"g": "8", "bf": "0"}})
        for width in (16, 96, 98, 170)
    },
}


def test_frames_are_the_requested_ones(write_video, numbers, tmp_path):
    for format, (name, options) in FORMATS.items():
        (tmp_path / format).mkdir()
        path = write_video(tmp_path / format / name, 40, **options)
        video = open_video(path)
        assert len(video) == 40
        for wanted in ([0], [39], [17], [3, 3, 30, 5], list(range(40))):
            frames = video.read(wanted)
            assert frames.shape == (len(wanted), 48, options.get("width", 64), 3)
            assert numbers(frames) == wanted, format


def test_decord_returns_the_same_frames_or_refuses_the_file(write_video, tmp_path):
    for format, (name, options) in FORMATS.items():
        (tmp_path / format).mkdir()
        path = write_video(tmp_path / format / name, 40, **options)
        if format in ("mp4", "starts late", "one keyframe", "mkv", "name") or "wide" in format:
            frames = open_video(path, decoder="decord").read([3, 3, 30, 5, 39])
            assert torch.equal(frames, open_video(path).read([3, 3, 30, 5, 39])), format
        else:
            with pytest.raises(VideoError, match="use decoder auto"):
                open_video(path, decoder="decord")


NAMES = (
    *("2024-01-01T12:30:00.mp4", "cam1: front.mp4", "http://a.mp4", "pipe:0", "fd:", "data:,x.mp4"),
    *("file:b.mp4", "concat:b.mp4|b.mp4", "subfile,,start,0,end,0,,:b.mp4", "-i.mp4", "a b?#.mp4"),
    *("b%d.gif", "b%03d.png", "[b]*.mp4", "{b1,c1}.jpg", "b.txt", "\udcff.mp4"),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("decoder", ["auto", "decord"])
def test_no_name_is_an_address_or_a_pattern(name, decoder, write_video, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for other in ("b.mp4", "b1.gif", "b001.png", "b1.jpg"):
        os.rename(write_video("five.mp4", 5), other)
    Path(name).parent.mkdir(exist_ok=True)
    os.rename(write_video("whole.mp4", 7), name)
    assert len(open_video(name, decoder=decoder)) == 7


def test_metadata_of_a_turned_video(write_video, tmp_path):
    path = write_video(tmp_path / "a.mp4", 6, rotation=90)
    metadata = probe(path)
    assert (metadata.width, metadata.height, metadata.rotation) == (48, 64, 90)
    assert metadata.codec == "h264"
    assert (metadata.fps, metadata.duration) == (pytest.approx(25), pytest.approx(6 / 25))


def test_known_count_avoids_decoding_to_count(write_video, numbers, tmp_path, monkeypatch):
    path = write_video(tmp_path / "a.avi", 20, **FORMATS["mpeg4"][1])
    with monkeypatch.context() as patch:
        patch.setattr(container, "_decode_times", None)  # fails if it is called
        video = open_video(path, frames=20)
        assert len(video) == 20
        assert numbers(video.read([19, 4])) == [19, 4]
    assert video.between(0, 0.2) == open_video(path).between(0, 0.2)


def test_wrong_known_count_is_an_error(write_video, tmp_path):
    path = write_video(tmp_path / "a.avi", 20, codec="mpeg4")
    with pytest.raises(VideoError, match="frame 21: cannot be decoded; 22 frames expected"):
        open_video(path, frames=22).read([3, 21])


def test_distant_frames_are_sought(write_video, tmp_path, monkeypatch):
    """Frames 0 and 35 of groups of 8 without B-frames need 1 + 4 decoded frames."""
    path = write_video(tmp_path / "a.mp4", 40, stream={"g": "8", "bf": "0"})
    video, decoded = open_video(path), []
    original = video._decode_from_keyframe
    monkeypatch.setattr(
        video,
        "_decode_from_keyframe",
        lambda *a: (decoded.append(f.pts) or f for f in original(*a)),
    )
    video.read([35, 0])
    assert len(decoded) == 5


def test_a_read_video_needs_no_garbage_collection(write_video, tmp_path):
    """Frames that stay until a collection would fill the memory of long runs."""
    path = write_video(tmp_path / "a.mp4", 10)
    open_video(path).read([3])
    gc.collect()
    gc.disable()
    try:
        open_video(path).read([3])
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_time_range_is_half_open(write_video, tmp_path):
    video = open_video(write_video(tmp_path / "a.mp4", 20))  # 25 frames per second
    assert video.between(None, None) == range(20)
    assert video.between(0.2, 0.4) == range(5, 10)
    assert video.between(0.5, None) == range(13, 20)
    with pytest.raises(VideoError, match=r"no frame in the part 5\.0 … 6\.0 s"):
        video.between(5.0, 6.0)


def write_audio(path, streams=()):
    """A sound, with one-color pictures in streams of these dispositions."""

    with av.open(str(path), "w") as output:
        sound = output.add_stream("aac", rate=16000)
        for disposition in streams:
            stream = output.add_stream("mjpeg", rate=25, width=64, height=48, pix_fmt="yuvj420p")
            stream.disposition = disposition
        for number, stream in enumerate(output.streams.video):
            for _ in range(1 if stream.disposition & Disposition.attached_pic else 5):
                image = np.full((48, 64, 3), shade(number), np.uint8)
                output.mux(stream.encode(av.VideoFrame.from_ndarray(image)))
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 16000
        for packet in [*sound.encode(frame), *sound.encode()]:
            output.mux(packet)


def test_a_cover_picture_is_not_a_video(numbers, tmp_path):
    cover = Disposition.attached_pic
    write_audio(tmp_path / "song.mp4", [cover])
    with pytest.raises(VideoError, match=r"no video stream: it is a sound file \(aac\)"):
        open_video(tmp_path / "song.mp4")
    write_audio(tmp_path / "both.mp4", [cover, Disposition(0)])
    assert numbers(open_video(tmp_path / "both.mp4").read(range(5))) == [1] * 5


def test_times_ascend():
    missing = ascending([None, 10, 20, None, 30, 25], 10)  # in the order of presentation
    assert missing.tolist() == [10, 15, 20, 22.5, 25, 30]
    assert ascending([None] * 3, 4).tolist() == [0, 4, 8]
    assert ascending([7, 7], 0).tolist() == [7, 7]  # of unknown rate


def test_gaps_that_are_no_jumps_stay():
    slides, reordered = [0, 12, 24, 36], [0, 1, 2, 17, 16, 18]
    for dts, pts in ((slides, slides), ([-1, 0, 1, 2, 16, 17], reordered)):
        packets = [SimpleNamespace(dts=d, pts=p) for d, p in zip(dts, pts, strict=True)]
        shown = joined(packets, av.ContainerFormat("mpegts"), Fraction(1))
        assert [packet.pts for packet in shown] == pts


def test_errors_name_file_and_cause(tmp_path):
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "text.mp4").write_text("This is not a video.")
    write_audio(tmp_path / "audio.mp4")
    causes = {
        "none.mp4": "no such file",
        "empty.mp4": "is empty",
        "text.mp4": "not a video",
        "audio.mp4": "no video stream",
    }
    for name, cause in causes.items():
        with pytest.raises(VideoError, match=cause) as caught:
            open_video(tmp_path / name)
        assert caught.value.path == str(tmp_path / name)
        assert name in str(caught.value)
        assert cause in caught.value.cause


def test_encrypted_videos_and_animations_that_ffmpeg_lacks(write_video, tmp_path):
    key = {"encryption_scheme": "cenc-aes-ctr", "encryption_key": "0" * 32}
    write_video(tmp_path / "a.mp4", container=key | {"encryption_kid": "0" * 32})
    frames = [Image.new("RGB", (64, 48), (shade, 0, 0)) for shade in (0, 99, 200)]
    frames[0].save(tmp_path / "a.webp", save_all=True, append_images=frames[1:])
    for name, cause in (("a.mp4", "encrypted"), ("a.webp", "animated WebP")):
        with pytest.raises(VideoError, match=cause):
            open_video(tmp_path / name).read([0])
    frames[2].save(tmp_path / "still.webp")
    assert len(open_video(tmp_path / "still.webp")) == 1


def test_hidden_frames_are_not_counted(write_video, numbers, tmp_path):
    # Frames at times below 0 are in the header, but are not shown.
    path = write_video(
        tmp_path / "a.mp4", 40, late=-13, container={"avoid_negative_ts": "disabled"}
    )
    metadata = probe(path, decode_all=True)
    assert (open_video(path).timeline.header_frames, metadata.frames) == (40, 27)
    assert numbers(open_video(path).read(range(27))) == list(range(13, 40))


def test_index_outside_the_video(write_video, tmp_path):
    path = write_video(tmp_path / "a.mp4", 20)
    for index in (-1, 20):
        with pytest.raises(VideoError) as caught:
            open_video(path).read([3, index])
        assert caught.value.frame == index


def test_folder_counts_from_zero_or_one(write_folder, numbers, tmp_path):
    for first, pattern in (
        (0, "{:05d}.jpg"),
        (1, "{:05d}.jpg"),
        (1, "img_{:04d}.png"),
        (0, "{}.png"),
    ):
        path = tmp_path / f"my video {first}{pattern}"
        folder = write_folder(path, 12, first=first, pattern=pattern)
        (path / "notes.txt").touch()
        assert len(open_video(folder, pattern=pattern)) == 12
        assert len(open_video(folder, pattern=pattern, frames=8)) == 8
        assert numbers(open_video(folder, pattern=pattern).read([11, 0, 5, 5])) == [11, 0, 5, 5]


def test_errors_of_folders(write_folder, tmp_path):
    (tmp_path / "empty").mkdir()
    write_folder(tmp_path / "gap")
    (tmp_path / "gap" / "00004.jpg").unlink()
    write_folder(tmp_path / "late", first=2)
    write_folder(tmp_path / "other", pattern="img_{:05d}.jpg")
    causes = {
        "empty": "the folder is empty",
        "gap": "frame 3: 00004.jpg is missing",
        "late": r"no image 00000.jpg or 00001.jpg; its files are named '\*.jpg'",
        "other": r"no image 00000.jpg or 00001.jpg; its files are named 'img_{:05d}.jpg' \(10\)",
    }
    for name, cause in causes.items():
        with pytest.raises(VideoError, match=f"{name}.*{cause}"):
            open_video(tmp_path / name)


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        ([f"{i:06d}-color.png" for i in range(12)], "{:06d}-color.png"),
        ([f"frame{i}_v2.jpg" for i in range(1, 12)], "frame*_v*.jpg"),
        ([f"{i}.jpg" for i in (8, 9, 10, 11, 100)], "*.jpg"),  # neither from 0 or 1 nor complete
        (["cam2_1403636579.763.png", "cam2_1403636579.81.png"], "cam*_*.png"),
        (["1305031102.5.png", "1305031102.75.png", "1305031103.0.png"], "*.png"),
    ],
)
def test_names_of_frames(names, pattern, numbers, tmp_path):
    """The error names the pattern; with it the frames are in the order of their numbers."""
    for i, name in enumerate(names):
        Image.new("RGB", (8, 8), (20 + 4 * i,) * 3).save(tmp_path / name)
        (tmp_path / f"depth{i}.png").touch()
        (tmp_path / f"._{name}").touch()
    with pytest.raises(VideoError, match=re.escape(f"its files are named {pattern!r}")) as caught:
        open_video(tmp_path)
    assert "'depth{}.png'" in str(caught.value)
    video = open_video(tmp_path, pattern=pattern)
    assert numbers(video.read(range(len(video)))) == [*range(len(names))]


def test_errors_of_patterns_of_any_number(write_folder, tmp_path):
    folder = write_folder(tmp_path / "v", 3)
    with pytest.raises(VideoError, match=r"no image img_\*\.jpg; its files are named '{:05d}.jpg'"):
        open_video(folder, pattern="img_*.jpg")
    with pytest.raises(VideoError, match=r"frame 3: only 3 files match '\*\.jpg'"):
        open_video(folder, pattern="*.jpg", frames=4).read([3])
    (tmp_path / "v" / "2.jpg").touch()
    with pytest.raises(VideoError, match="have the same number"):
        open_video(folder, pattern="*.jpg")


def test_errors_of_images(write_folder, tmp_path):
    folder = tmp_path / "v"
    write_folder(folder)
    whole = (folder / "00003.jpg").read_bytes()
    (folder / "00003.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "00005.jpg").write_text("no image")
    for index, name in ((2, "00003.jpg"), (4, "00005.jpg")):
        with pytest.raises(VideoError, match=f"frame {index}: {name} is not a readable image"):
            open_video(folder).read([index])
    (folder / "00010.jpg").unlink()
    with pytest.raises(VideoError, match=r"frame 9: 00010\.jpg is missing"):
        open_video(folder, frames=10).read([9])


def test_images_of_different_size_are_refused(write_folder, tmp_path):
    write_folder(tmp_path / "v", 3)
    write_folder(tmp_path / "other", 3, size=(32, 32))
    (tmp_path / "other" / "00002.jpg").replace(tmp_path / "v" / "00002.jpg")
    with pytest.raises(VideoError, match="frame 1: is 32 x 32 pixels, others 64 x 48"):
        open_video(tmp_path / "v").read([0, 1, 2])
