"""Orientation and bits per value of frames, in images and in video files."""

from __future__ import annotations

import struct
from fractions import Fraction

import av
import numpy as np
import pytest
from PIL import Image
from serve_files import write_video

from ffn.data import VideoError, open_video
from ffn.data.decoding.folder import read_image

TURNED = {  # by EXIF orientation: the matrix of mp4, and the picture that is shown
    1: ((1, 0, 0, 1), lambda x: x),
    2: ((-1, 0, 0, 1), lambda x: x[:, ::-1]),
    3: ((-1, 0, 0, -1), lambda x: x[::-1, ::-1]),
    4: ((1, 0, 0, -1), lambda x: x[::-1]),
    5: ((0, 1, 1, 0), lambda x: x.swapaxes(0, 1)),
    6: ((0, 1, -1, 0), lambda x: np.rot90(x, -1)),
    7: ((0, -1, -1, 0), lambda x: np.rot90(x, 2).swapaxes(0, 1)),
    8: ((0, -1, 1, 0), lambda x: np.rot90(x)),
}
RAMP = np.linspace(0, 65535, 48 * 64).reshape(48, 64).astype(np.uint16)
GRAY = (RAMP // 257).astype(np.uint8)


@pytest.fixture(scope="module")
def mp4(tmp_path_factory):
    """A video of a picture without symmetry, as bytes."""
    path = tmp_path_factory.mktemp("turned") / "a.mp4"
    return write_video(path, np.stack([GRAY] * 3, -1)[None], rate=10).read_bytes()


@pytest.mark.parametrize("orientation", TURNED)
@pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "webp"])
def test_orientation_of_images(orientation, suffix, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    for array in [GRAY, RAMP] if suffix in ("png", "tif") else [GRAY]:
        Image.fromarray(array).save(tmp_path / f"0.{suffix}")
        Image.fromarray(array).save(tmp_path / f"1.{suffix}", exif=exif)
        video = open_video(tmp_path, pattern=f"{{}}.{suffix}")
        stored, shown = (video.read([i])[0].numpy() for i in (0, 1))
        np.testing.assert_array_equal(shown, TURNED[orientation][1](stored))


@pytest.mark.parametrize("orientation", TURNED)
def test_orientation_of_videos(orientation, mp4, tmp_path):
    (tmp_path / "a.mp4").write_bytes(mp4)
    stored = open_video(tmp_path / "a.mp4").read([0])[0].numpy()
    matrix, turn = TURNED[orientation]
    a, b, c, d = (65536 * value for value in matrix)
    at = mp4.find(b"tkhd") + 44
    data = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    (tmp_path / "a.mp4").write_bytes(mp4[:at] + data + mp4[at + 36 :])
    shown = open_video(tmp_path / "a.mp4").read([0])[0].numpy()
    np.testing.assert_array_equal(shown, turn(stored))
    if orientation in (2, 4, 5, 7):
        with pytest.raises(VideoError, match="mirrored"):
            open_video(tmp_path / "a.mp4", decoder="decord")


@pytest.mark.parametrize("pixels", ["gray16", "rgb48", "rgba64"])
@pytest.mark.parametrize(("codec", "order"), [("png", "be"), ("tiff", "le")])
def test_values_of_sixteen_bits_are_scaled(codec, order, pixels, tmp_path):
    pixels += order
    context = av.CodecContext.create(codec, "w")
    context.width, context.height, context.pix_fmt = 64, 48, pixels
    context.time_base = Fraction(1)
    frame = av.VideoFrame.from_ndarray(RAMP, format="gray16le").reformat(format=pixels)
    (tmp_path / "a").write_bytes(b"".join(map(bytes, context.encode(frame))))
    found = read_image(tmp_path / "a").astype(float)
    np.testing.assert_allclose(found, np.stack([RAMP / 257] * 3, -1), atol=1)


def test_gray_of_twelve_bits_and_inverted_is_scaled(tmp_path):
    """TIFF files written byte by byte: 12 bits per value, and 0 for white."""
    for bits, photometric, data, expected in (
        (12, 1, b"\x00\x0f\xff", [0, 255]),
        (16, 0, b"\x00\x00\xff\xff", [255, 0]),
    ):
        tags = {256: 2, 257: 1, 258: bits, 259: 1, 262: photometric, 273: 110, 278: 1, 279: 4}
        entries = b"".join(struct.pack("<HHIHH", tag, 3, 1, v, 0) for tag, v in tags.items())
        header = b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4)
        (tmp_path / "a.tif").write_bytes(header + data)
        assert read_image(tmp_path / "a.tif")[0, :, 0].tolist() == expected


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_values_of_unknown_range_are_refused(kind, tmp_path):
    Image.fromarray(RAMP.astype(kind)).save(tmp_path / "1.tif")
    with pytest.raises(VideoError, match=r"frame 0: 1\.tif .* unknown range; scale"):
        open_video(tmp_path, pattern="{}.tif").read([0])
