"""Read an image file as a frame: upright, RGB, 8 bits per value."""

from __future__ import annotations

import warnings

import numpy as np

from ffn.limits import frame_refusal

BITS, WHITE_IS_ZERO = 258, 262  # tags of TIFF: bits per value, and 0 where 0 is white


def read_image(path: str) -> np.ndarray:
    """Pixels of an image, uint8 RGB (H, W, 3), with its EXIF orientation applied.

    Values of 16 bits are scaled: 65535 becomes 255. Transparency is ignored.

    Raises:
        ValueError: if the file is no image, is damaged or too large, or its values are floats or
            32-bit integers, whose range is unknown.
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
            largest = 2 ** tags.get(BITS, (16,))[0] - 1  # of gray values of more than 8 bits
            inverted = tags.get(WHITE_IS_ZERO) == 0
            ImageOps.exif_transpose(image, in_place=True)
            if image.mode in ("I", "F"):
                unknown = "its values are floats or 32-bit integers, of an unknown range"
                raise ValueError(f"{unknown}; scale all images of a video to 8 or 16 bits")
            if image.mode.startswith("I;16"):
                gray = np.asarray(image) / largest
                gray = np.rint(255 * (1 - gray if inverted else gray))
                image = Image.fromarray(gray.astype(np.uint8))
            return np.asarray(image.convert("RGB"))
    except UnidentifiedImageError:
        raise ValueError("not an image that Pillow reads; convert it to PNG or JPEG") from None
    except Exception as error:  # of damaged data, in any plugin of Pillow
        raise ValueError(str(error)) from None
