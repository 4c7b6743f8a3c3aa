"""What training may do to pixels besides crop and flip: one draw for all frames of a sample.

Everything takes and returns uint8 RGB frames (N, 3, H, W), so that it runs in the loader's workers
and what leaves them stays small. Each frame is changed by itself: what a frame becomes depends on
the draw, not on the other frames.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import v2

from ffn.data.draws import library_draws, seed_libraries

_SECTION = re.compile(r"-(m|n|mmax|inc|p|mstd)(\d+(?:\.\d+)?)")
_BOX_AREA = (0.02, 1 / 3)  # of the frame; Zhong et al. 2020 as timm, SlowFast and UniFormer use it
_BOX_ASPECT = (0.3, 1 / 0.3)  # height over width


def check_randaugment(policy: str) -> None:
    """Refuse what is no policy of :class:`RandAugment`.

    Raises:
        ValueError: a section is unknown.
    """
    head, sections = policy[:4], dict(_SECTION.findall(policy))
    whole = all(sections.get(key, "0").isdecimal() for key in ("m", "n", "mmax", "inc"))
    known = head == "rand" and not _SECTION.sub("", policy[4:])
    most = float(sections.get("mmax", 10))
    in_range = float(sections.get("m", 0)) <= most and float(sections.get("p", 0)) <= 1
    if not (known and whole and in_range and sections.get("inc", "0") in "01"):
        raise ValueError(
            f"randaugment is {policy!r}; expected timm's form, as rand-m7-n4-mstd0.5-inc1: 'rand', "
            "then m (magnitude, 0 to 10), n (operations), p (probability of each, default 0.5), "
            "mstd (deviation of the magnitude), mmax (largest magnitude, default 10), inc (1: "
            "larger magnitudes are stronger)"
        )


class ColourJitter:
    """Brightness, contrast, saturation and hue by random factors, in random order: torchvision's.

    Args:
        strengths: Of the four; factors are drawn from 1 - s … 1 + s, hue from -s … s.
    """

    def __init__(self, strengths: Sequence[float]) -> None:
        self.jitter = v2.ColorJitter(*strengths)

    def __call__(self, x: Tensor, generator: np.random.Generator) -> Tensor:
        """Change all frames by the same factors.

        Args:
            x: uint8 (N, 3, H, W).
            generator: Source of one draw.
        """
        with library_draws(generator):
            return self.jitter(x)


class RandAugment:
    """RandAugment (Cubuk et al. 2020) as timm has it, the same operations for all frames.

    timm's, not torchvision's: the published video recipes (`rand-m7-n4-mstd0.5-inc1` of SlowFast
    and UniFormer) are written in its language. torchvision's never skips an operation (timm's
    p = 0.5), has no noise on the magnitude (mstd), neither Invert nor SolarizeAdd, and a weaker
    Posterize. timm works on images of PIL and draws from Python's and numpy's global generators:
    they are seeded anew for each frame, so that each meets the same draws.

    Args:
        policy: As `rand-m7-n4-mstd0.5-inc1`.
        fill: RGB, 0 to 255, of what a frame that was moved leaves empty.

    Raises:
        ValueError: the policy is not of timm's form.
    """

    def __init__(self, policy: str, fill: Sequence[int] = (128, 128, 128)) -> None:
        from PIL import Image
        from timm.data.auto_augment import rand_augment_transform

        check_randaugment(policy)
        settings = {"img_mean": tuple(fill), "interpolation": Image.Resampling.BICUBIC}
        self.augment = rand_augment_transform(policy, settings)

    def __call__(self, x: Tensor, generator: np.random.Generator) -> Tensor:
        """Change all frames by the same operations.

        Args:
            x: uint8 (N, 3, H, W).
            generator: Source of one draw.
        """
        from PIL import Image

        images = x.permute(0, 2, 3, 1).contiguous().numpy()  # (N, H, W, C)
        frames = []
        with library_draws(generator) as seed:
            for image in images:
                seed_libraries(seed)
                frames.append(np.asarray(self.augment(Image.fromarray(image))))
        return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)


class RandomErasing:
    """Noise in place of a random box (Zhong et al. 2020), the same for all frames.

    The noise is normal with the mean and deviation of the normalisation, that is N(0, 1) for the
    network.

    Args:
        probability: That a sample loses a box.
        mean: RGB, of 0 to 1.
        std: Likewise.

    Note:
        SlowFast and UniFormer erase after the normalisation and draw fresh noise in each frame.
        Here it is done in uint8, in the workers, which cuts the noise off at 0 and 255 (about two
        deviations), and all frames show one picture of noise: a film that stands still stays so.
    """

    def __init__(self, probability: float, mean: Sequence[float], std: Sequence[float]) -> None:
        self.probability = probability
        self.mean, self.std = (np.array(v, dtype=np.float32)[:, None, None] for v in (mean, std))

    def __call__(self, x: Tensor, generator: np.random.Generator) -> Tensor:
        """Erase the same box in all frames, or nothing.

        Args:
            x: uint8 (N, 3, H, W).
            generator: Source of the draws.
        """
        if generator.random() >= self.probability:
            return x
        box = draw_box(*x.shape[-2:], generator)
        if box is None:
            return x
        top, left, height, width = box
        noise = generator.standard_normal((3, height, width), dtype=np.float32)
        pixels = np.clip(np.rint(255 * (self.mean + self.std * noise)), 0, 255).astype(np.uint8)

        x = x.clone()
        x[..., top : top + height, left : left + width] = torch.from_numpy(pixels)
        return x


def draw_box(
    height: int, width: int, generator: np.random.Generator
) -> tuple[int, int, int, int] | None:
    """Draw a box of 2 % to a third of a frame, its height 0.3 to 3.3 times its width.

    Args:
        height: Of the frame, in pixels.
        width: Of the frame, in pixels.
        generator: Source of the draws.

    Returns:
        top, left, height and width in pixels; None if ten boxes did not fit.
    """
    for _ in range(10):
        area = height * width * generator.uniform(*_BOX_AREA)
        aspect = math.exp(generator.uniform(*map(math.log, _BOX_ASPECT)))
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < h < height and 0 < w < width:
            return (
                int(generator.integers(height - h + 1)),
                int(generator.integers(width - w + 1)),
                h,
                w,
            )
    return None
