"""Containers that a service accepts, and files that name other files."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from ffn.serve.web.containers import HEAD_BYTES, container_of

WRITTEN = {  # suffix: format and codec of FFmpeg, container
    "mp4": ("mp4", "mpeg4", "MP4"),
    "fragmented.mp4": ("mp4", "mpeg4", "MP4"),
    "mov": ("mov", "mpeg4", "MP4"),
    "3gp": ("3gp", "mpeg4", "MP4"),
    "mkv": ("matroska", "mpeg4", "Matroska"),
    "webm": ("webm", "libvpx", "Matroska"),
    "avi": ("avi", "mpeg4", "AVI"),
    "gif": ("gif", "gif", "GIF"),
    "flv": ("flv", "flv", "FLV"),
    "wmv": ("asf", "wmv2", "ASF"),
    "ogv": ("ogg", "libvpx", "Ogg"),
    "mpg": ("vob", "mpeg2video", "MPEG-PS"),
    "ts": ("mpegts", "mpeg2video", "MPEG-TS"),
    "m2ts": ("mpegts", "mpeg2video", "MPEG-TS"),
}


def head_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


@pytest.mark.parametrize("suffix", WRITTEN)
def test_videos_of_each_container(suffix, tmp_path) -> None:
    kind, codec, expected = WRITTEN[suffix]
    path = tmp_path / f"video.{suffix}"
    options = {"fragmented.mp4": {"movflags": "frag_keyframe+empty_moov"}}.get(suffix, {})
    options |= {"mpegts_m2ts_mode": "1"} if suffix == "m2ts" else {}
    with av.open(str(path), "w", format=kind, options=options) as output:
        stream = output.add_stream(codec, rate=25)
        stream.width, stream.height = (176, 144)
        stream.pix_fmt = "rgb8" if codec == "gif" else "yuv420p"
        for n in range(5):
            pixels = np.full((144, 176, 3), 40 * n, np.uint8)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        output.mux(stream.encode())

    assert container_of(head_of(path)) == expected


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n",
        b"ffconcat version 1.0\nfile /etc/hostname\n",
        b"<?xml version='1.0'?><MPD><BaseURL>http://127.0.0.1/</BaseURL></MPD>",
        b"<html><body>not found</body></html>",
        b"PK\x03\x04" + bytes(600),
        b"RIFF\x00\x00\x00\x00WAVEfmt ",
        b"\x47" + bytes(600),  # one packet of MPEG-TS, not two
        bytes(600),
    ],
)
def test_other_files_are_not_accepted(content) -> None:
    assert container_of(content[:HEAD_BYTES]) is None


def test_pictures_are_not_accepted(tmp_path) -> None:
    for suffix in ("png", "jpg", "webp", "bmp"):
        Image.new("RGB", (40, 30)).save(tmp_path / f"picture.{suffix}")
        assert container_of(head_of(tmp_path / f"picture.{suffix}")) is None
