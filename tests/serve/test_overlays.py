"""Colors and places of heat maps over frames."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ffn.data import EvalTransform, Preprocessing
from ffn.serve import overlay
from ffn.serve.overlays import OPACITY, UNSEEN, VideoOverlay, colors, scale


def test_the_colors_are_those_of_matplotlib() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    values = np.arange(256) / 255
    expected = 255 * matplotlib.colormaps["plasma"](np.arange(256))[:, :3]
    assert np.abs(colors(values) - expected).max() < 5
    assert (scale(256, 4) == scale(256, 4)[:1]).all()
    assert np.abs(scale(256, 4)[0] - expected).max() < 5.5


def test_opacity_grows_with_the_value() -> None:
    frames = np.full((3, 2, 2, 3), (200, 100, 50), np.uint8)
    values = np.broadcast_to(np.array([0.0, 0.4, 1.0])[:, None, None], (3, 2, 2))
    drawn = overlay(frames, values)
    gray = 0.299 * 200 + 0.587 * 100 + 0.114 * 50
    for value, picture in zip((0.0, 0.4, 1.0), drawn, strict=True):
        share = OPACITY * value
        expected = (1 - share) * gray + share * colors(np.array(value))
        assert np.abs(picture - expected).max() <= 0.51
    assert drawn.dtype == np.uint8
    with pytest.raises(ValueError, match=r"the frames have shape \(3, 2, 2, 3\), the heat map"):
        overlay(frames, values[:2])


@pytest.mark.parametrize(("height", "width"), [(40, 40), (251, 333), (480, 270)])
@pytest.mark.parametrize(("resize", "crop"), [(64, 32), (32, 32)])
def test_the_box_is_what_the_transform_shows(height, width, resize, crop) -> None:
    """Frames whose pixels are their own coordinates."""
    transform = EvalTransform(Preprocessing(crop=crop, resize=resize))
    y, x = np.mgrid[:height, :width]
    shares = np.stack([(y + 0.5) / height, (x + 0.5) / width, 0 * x], -1)
    frame = torch.from_numpy(np.rint(250 * shares).astype(np.uint8))[None]
    shown = transform(frame)[0].double() / 250  # (C, H, W)

    top, left, bottom, right = transform.box(height, width)
    for channel, (start, end) in enumerate(((top, bottom), (left, right))):
        expected = start + (end - start) * (np.arange(crop) + 0.5) / crop
        found = shown[channel].mean(1 - channel).numpy()
        assert np.abs(found - expected).max() < 0.6 / 250 + 0.25 * (end - start) / crop


def test_each_frame_has_the_map_that_is_nearest_in_time() -> None:
    values = np.zeros((2, 4, 4), np.float32)
    values[1] = 1
    times = np.array([0.0, 0.1, 0.2, 1.0, 1.1])
    over = VideoOverlay(values, (1, 3), times, lambda *_: (0.0, 0.0, 1.0, 1.0))
    image = np.full((8, 8, 3), 90, np.uint8)
    hot = [bool((over(image, (8, 8), n) != 90).any()) for n in range(5)]
    assert hot == [False, False, False, True, True]


def test_the_map_is_at_the_place_of_the_crop() -> None:
    values = np.zeros((1, 4, 4), np.float32)
    values[0, 0, 0] = 1  # top left of the crop
    transform = EvalTransform(Preprocessing(crop=32, resize=40))
    over = VideoOverlay(values, (0,), np.zeros(1), transform.box)
    image = np.full((80, 160, 3), 100, np.uint8)

    drawn = over(image, (80, 160), 0).astype(int)

    seen = np.zeros((80, 160), bool)
    seen[8:72, 48:112] = True  # 40 x 80 px, of which rows 4 to 36 and columns 24 to 56
    assert (drawn[~seen] == round(UNSEEN * 100)).all()
    hot = (drawn != 100).any(-1) & seen
    rows, columns = np.nonzero(hot)
    assert (rows.min(), columns.min()) == (8, 48)
    assert max(rows.max() - 8, columns.max() - 48) < 32
    # The same in a frame that is drawn smaller than it is.
    half = over(image[::2, ::2], (80, 160), 0).astype(int)
    assert (half[~seen[::2, ::2]] == round(UNSEEN * 100)).all()
    assert (half[20:36, 40:56] == 100).all()
