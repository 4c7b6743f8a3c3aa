"""Find frames in the pixels of a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor


def read_picture(path: Path) -> np.ndarray:
    """uint8 (H, W, 3)."""
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def enlarged(frame: Tensor, factor: int) -> np.ndarray:
    """A frame (C, H, W) with every pixel as a square, as uint8 (h, w, C)."""
    return np.kron(frame.permute(1, 2, 0).numpy(), np.ones((factor, factor, 1), dtype=np.uint8))


def places(picture: np.ndarray, part: np.ndarray) -> list[tuple[int, int]]:
    """Top left corners (y, x) of all exact copies of a part, row by row."""
    height, width, _ = part.shape
    rows, columns = picture.shape[0] - height + 1, picture.shape[1] - width + 1
    found = np.ones((max(0, rows), max(0, columns)), dtype=bool)
    for y, x in ((0, 0), (0, width - 1), (height - 1, 0), (height // 2, width // 2)):
        found &= (picture[y : y + rows, x : x + columns] == part[y, x]).all(-1)
    corners = [(int(y), int(x)) for y, x in np.argwhere(found)]
    return [(y, x) for y, x in corners if (picture[y : y + height, x : x + width] == part).all()]
