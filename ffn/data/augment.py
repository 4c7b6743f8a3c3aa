"""Color jitter, RandAugment and random erasing, with the same parameters for all frames.

All transforms take and return uint8 RGB frames (N, 3, H, W), so that loader workers send small
tensors. A transform draws its parameters once per sample and changes each frame separately.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ffn.data.global_rng import library_draws, seed_libraries

_POLICY = r"rand(-m(\d|10)|-n\d+|-p(0?\.\d+|[01])|-mstd\d+(\.\d+)?|-inc[01])*"
# Area of an erased box as a share of the frame, and height over width: as timm and SlowFast.
_BOX = {"scale": (0.02, 1 / 3), "ratio": (0.3, 1 / 0.3)}


class ColorJitter:
    """torchvision's `ColorJitter`: brightness, contrast, saturation and hue, in random order.

    Args:
        strengths: Four values s; a factor is drawn from 1 - s … 1 + s, the hue from -s … s.
    """

    def __init__(self, strengths: Sequence[float]) -> None:
        from torchvision.transforms import v2

        self.jitter = v2.ColorJitter(*strengths)

    def __call__(self, x: Tensor, generator: np.random.Generator) -> Tensor:
        """Apply the same factors to all frames; takes one draw."""
        with library_draws(generator):
            return self.jitter(x)


class RandAugment:
    """timm's RandAugment (Cubuk et al. 2020), with the same operations for all frames.

    The published video recipes (`rand-m7-n4-mstd0.5-inc1` of SlowFast and UniFormer) are timm
    policies. torchvision's RandAugment differs: it never skips an operation (p = 0.5 in timm), has
    no noise on the magnitude (mstd), no Invert and no SolarizeAdd, and a weaker Posterize. timm
    takes PIL images and draws from the global generators of Python and NumPy; they are seeded
    again for each frame, so that all frames get the same draws.

    Args:
        policy: As `rand-m7-n4-mstd0.5-inc1`.
        fill: RGB, 0 to 255, of the area that a shifted or rotated frame leaves empty.

    Raises:
        ValueError: if the policy is invalid.
    """

    def __init__(self, policy: str, fill: Sequence[int] = (128, 128, 128)) -> None:
        from PIL import Image
        from timm.data.auto_augment import rand_augment_transform

        if not re.fullmatch(_POLICY, policy):
            raise ValueError(
                f"randaugment is {policy!r}; expected a policy of timm, as "
                "rand-m7-n4-mstd0.5-inc1, with a magnitude m from 0 to 10"
            )
        settings = {"img_mean": tuple(fill), "interpolation": Image.Resampling.BICUBIC}
        self.augment = rand_augment_transform(policy, settings)

    def __call__(self, x: Tensor, generator: np.random.Generator) -> Tensor:
        """Apply the same operations to all frames; takes one draw."""
        from PIL import Image

        images = x.permute(0, 2, 3, 1).contiguous().numpy()  # (N, H, W, C)
        frames = []
        with library_draws(generator) as seed:
            for image in images:
                seed_libraries(seed)
                frames.append(np.asarray(self.augment(Image.fromarray(image))))
        return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)


class RandomErasing:
    """Random erasing (Zhong et al. 2020): replace a box by noise, the same in all frames.

    The noise has the mean and standard deviation of the normalization, so it is N(0, 1) for the
    network.

    Args:
        probability: Probability that a sample is erased.
        mean: RGB, on a scale of 0 to 1.
        std: RGB, on a scale of 0 to 1.

    Note:
        SlowFast and UniFormer erase after the normalization and draw new noise for each frame.
        Here the frames are uint8, which clips the noise at 0 and 255 (about two standard
        deviations), and all frames get the same noise, so that a static video stays static.
    """

    def __init__(self, probability: float, mean: Sequence[float], std: Sequence[float]) -> None:
        from torchvision.transforms import v2

        self.erase = v2.RandomErasing(probability, **_BOX, value=1)
        self.mean, self.std = (np.array(v, dtype=np.float32)[:, None, None] for v in (mean, std))

    def __call__(self, x: Tensor, generator: np.random.Generator) -> Tensor:
        """Erase the same box in all frames, with the given probability."""
        with library_draws(generator):
            box = self.erase(torch.zeros(1, *x.shape[-2:])) > 0
        if not box.any():
            return x
        noise = generator.standard_normal(x.shape[-3:], dtype=np.float32)
        pixels = np.clip(np.rint(255 * (self.mean + self.std * noise)), 0, 255).astype(np.uint8)
        return torch.where(box, torch.from_numpy(pixels), x)
