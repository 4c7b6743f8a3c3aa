"""Draw heat maps over frames: colors and opacity."""

from __future__ import annotations

import numpy as np

# Matplotlib's perceptually uniform "plasma" (CC0) at 17 even steps from 0 to 1.
PLASMA = (
    *("0D0887", "310597", "4C02A1", "6600A7", "7E03A8", "9511A1", "AA2395", "BC3587", "CC4778"),
    *("DA5A6A", "E66C5C", "F0804E", "F89540", "FDAC33", "FDC527", "F8DF25", "F0F921"),
)
OPACITY = 0.75  # of the value 1; that of others is proportional

_ANCHORS = np.array([[int(color[i : i + 2], 16) for i in (0, 2, 4)] for color in PLASMA])


def colors(values: np.ndarray) -> np.ndarray:
    """Colors of values from 0 to 1, float32 RGB from 0 to 255, (..., 3)."""
    steps = np.linspace(0, 1, len(_ANCHORS))
    channels = [np.interp(values, steps, _ANCHORS[:, channel]) for channel in range(3)]
    return np.stack(channels, -1).astype(np.float32)


def overlay(frames: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Gray frames with the colors of a heat map over them; the higher the value, the more opaque.

    The frames are gray because their own colors could be taken for those of the heat map.

    Args:
        frames: uint8 RGB (..., H, W, 3).
        values: From 0 to 1, (..., H, W).

    Returns:
        uint8 RGB of the shape of `frames`.

    Raises:
        ValueError: if the shapes differ.
    """
    if frames.shape != (*values.shape, 3):
        raise ValueError(f"the frames have shape {frames.shape}, the heat map {values.shape}")
    opacity, gray = OPACITY * values[..., None], _gray(frames)
    return np.rint(gray + opacity * (colors(values) - gray)).astype(np.uint8)


def _gray(frames: np.ndarray) -> np.ndarray:
    """Brightness (ITU-R BT.601) of RGB frames (..., 3), float32 (..., 1)."""
    return frames.astype(np.float32) @ np.array([[0.299], [0.587], [0.114]], np.float32)
