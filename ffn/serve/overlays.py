"""Draw heat maps over frames: colors, opacity, and the place of a clip in a video's frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

# Matplotlib's perceptually uniform "plasma" (CC0) at 17 even steps from 0 to 1.
PLASMA = (
    *("0D0887", "310597", "4C02A1", "6600A7", "7E03A8", "9511A1", "AA2395", "BC3587", "CC4778"),
    *("DA5A6A", "E66C5C", "F0804E", "F89540", "FDAC33", "FDC527", "F8DF25", "F0F921"),
)
OPACITY = 0.75  # of the value 1; that of others is proportional
UNSEEN = 0.35  # brightness of the parts of a frame that the network did not see

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


def scale(width: int, height: int) -> np.ndarray:
    """The colors from 0 on the left to 1 on the right, uint8 RGB (height, width, 3)."""
    ramp = np.rint(colors(np.linspace(0, 1, width))).astype(np.uint8)
    return np.tile(ramp, (height, 1, 1))


def _gray(frames: np.ndarray) -> np.ndarray:
    """Brightness (ITU-R BT.601) of RGB frames (..., 3), float32 (..., 1)."""
    return frames.astype(np.float32) @ np.array([[0.299], [0.587], [0.114]], np.float32)


class VideoOverlay:
    """Draws the heat map of the clip's nearest frame in time over each frame of a video.

    Parts of a frame that the clip does not show are dark.

    Args:
        values: Of the heat map, (T, H, W).
        indices: Of the clip's frames in the video.
        times: Of all frames of the video, in seconds.
        box: Gives the part of a frame of the video that the clip shows, see
            :meth:`ffn.data.EvalTransform.box`.
    """

    def __init__(
        self,
        values: np.ndarray,
        indices: Sequence[int],
        times: np.ndarray,
        box: Callable[[int, int], tuple[float, float, float, float]],
    ) -> None:
        self._values, self._box = values, box
        self._times, self._seen = times, times[list(indices)]
        self._drawn: tuple[tuple[int, ...], np.ndarray] | None = None  # the last map, and its key

    def __call__(self, image: np.ndarray, size: tuple[int, int], index: int) -> np.ndarray:
        """A frame with the heat map over it.

        Args:
            image: uint8 RGB (H, W, 3), the frame in any size.
            size: Height and width of the frame in the video.
            index: Of the frame.
        """
        nearest = int(np.abs(self._seen - self._times[index]).argmin())
        shares, sides = self._box(*size), 2 * image.shape[:2]
        top, left, bottom, right = (round(a * b) for a, b in zip(shares, sides, strict=True))
        drawn = np.broadcast_to(np.rint(UNSEEN * _gray(image)), image.shape).astype(np.uint8)
        part = (slice(top, bottom), slice(left, right))
        drawn[part] = overlay(image[part], self._resized(nearest, bottom - top, right - left))
        return drawn

    def _resized(self, number: int, height: int, width: int) -> np.ndarray:
        """The map of a frame of the clip, in another size."""
        from PIL import Image

        key = number, height, width
        if self._drawn is None or self._drawn[0] != key:
            picture = Image.fromarray(self._values[number])
            resized = picture.resize((width, height), Image.Resampling.BILINEAR)
            self._drawn = key, np.asarray(resized).clip(0, 1)
        return self._drawn[1]
