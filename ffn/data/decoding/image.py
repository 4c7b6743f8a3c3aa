"""Read an image file as a frame: upright, RGB, 8 bits per value."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from ffn.limits import frame_refusal

if TYPE_CHECKING:
    from PIL.Image import Image

BITS, WHITE_IS_ZERO = 258, 262  # tags of TIFF: bits per value, and 0 where 0 is white


def read_image(path: str) -> np.ndarray:
    """Pixels of an image, uint8 RGB (H, W, 3), with its EXIF orientation applied.

    Values of 16 bits are scaled: 65535 becomes 255. Transparency is ignored.

    Raises:
        ValueError: if the file is no image, is damaged or too large, or has values without a known
            range (32-bit integers and floats).
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        # Of an opened file: Pillow scrambles the rows of some turned TIFFs that it opens by path.
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(file)
            if refusal := frame_refusal(*image.size):
                raise ValueError(refusal)
            tags = getattr(image, "tag_v2", {})
            bits, inverted = tags.get(BITS, (16,))[0], tags.get(WHITE_IS_ZERO) == 0
            ImageOps.exif_transpose(image, in_place=True)
            return _to_rgb(image, bits, inverted)
    except UnidentifiedImageError:
        raise ValueError("not an image that Pillow reads; convert it to PNG or JPEG") from None
    except Exception as error:  # of damaged data, in any plugin of Pillow
        raise ValueError(str(error)) from None


def _to_rgb(image: Image, bits: int, inverted: bool) -> np.ndarray:
    """Pixels of an upright image; `bits` and `inverted` are of gray values of up to 16 bits."""
    if image.mode in ("I", "F"):
        raise ValueError(
            "its values are floats or 32-bit integers, whose range is unknown; scale them to 8 or "
            "16 bits, all images of a video alike"
        )
    if not image.mode.startswith("I;16"):
        return np.asarray(image.convert("RGB"))
    largest = 2**bits - 1
    gray = (np.asarray(image).astype(np.uint32) * 255 + largest // 2) // largest
    gray = (255 - gray if inverted else gray).astype(np.uint8)
    return np.repeat(gray[..., None], 3, axis=2)
