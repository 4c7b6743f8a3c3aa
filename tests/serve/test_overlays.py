"""Colors and places of heat maps over frames."""

from __future__ import annotations

import numpy as np
import pytest

from ffn.serve import overlay
from ffn.serve.overlays import OPACITY, colors


def test_the_colors_are_those_of_matplotlib() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    values = np.arange(256) / 255
    expected = 255 * matplotlib.colormaps["plasma"](np.arange(256))[:, :3]
    assert np.abs(colors(values) - expected).max() < 5


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
