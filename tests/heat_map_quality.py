"""How well heat maps find the moving object of generated videos.

The object, a dart, is where `ffn.datasets.motions` drew it. A share is that of the heat map's sum
that lies on the dart or within two pixels of it. The share of a map of equal values is what chance
gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ffn.data import EvalTransform
from ffn.datasets import motions
from ffn.labels import SingleLabel
from ffn.serve import HeatMap, Predictor
from ffn.serve.heat_maps import HeatMaps
from ffn.zoo.load import model_from_record

WEIGHTS = "tsm_tiny.motion_f4_8_16"
FRAMES = 16
SIZE, LENGTH = 28, 40  # of a video, pixels and frames
NEAR = 2  # pixels


@dataclass(frozen=True)
class Footage:
    """A generated video: its label, frames, and the parts that its two darts cover, (T, H, W)."""

    label: str
    frames: np.ndarray
    dart: np.ndarray
    decoy: np.ndarray


def footage(label: str, number: int) -> Footage:
    """The video of a class and number, none of those in the data set, and where its darts are."""
    seed = [2, motions.CLASSES.index(label), number]
    covers: list[np.ndarray] = []
    original = motions._dart

    def record(*given: object) -> np.ndarray:
        covers.append(original(*given))
        return covers[-1]

    motions._dart = record
    try:
        frames = motions.draw(label, size=SIZE, frames=LENGTH, rng=np.random.default_rng(seed))
    finally:
        motions._dart = original
    return Footage(label, frames, *covers)


def footages(count: int) -> Iterator[Footage]:
    """Videos of all classes in turn."""
    for number in range(count):
        yield footage(
            motions.CLASSES[number % len(motions.CLASSES)], number // len(motions.CLASSES)
        )


def share(heat: HeatMap, cover: np.ndarray) -> float:
    """The share of a heat map's sum that is near a dart."""
    near = _near(heat, cover)
    return float((heat.values * near).sum() / heat.values.sum())


def chance(heat: HeatMap, cover: np.ndarray) -> float:
    """The share of a map of equal values."""
    return float(_near(heat, cover).mean())


def _near(heat: HeatMap, cover: np.ndarray) -> Tensor:
    """1 for each pixel of a clip that is near a dart, else 0, (T, H, W).

    A pixel belongs to the dart if it covers half of the pixel.
    """
    cover = cover[list(heat.clip.indices)]
    images = torch.from_numpy(np.rint(255 * cover).astype(np.uint8))[..., None].expand(
        -1, -1, -1, 3
    )
    shown = EvalTransform(heat.preprocessing)(images)[:, 0] >= 128
    return F.max_pool2d(shown.float(), 2 * NEAR + 1, 1, NEAR)


def correlation(first: HeatMap, second: HeatMap) -> float:
    """Spearman's rank correlation of two heat maps, over all pixels and frames."""
    from scipy.stats import spearmanr

    return float(spearmanr(first.values.flatten(), second.values.flatten()).statistic)


def randomized(predictor: Predictor, seed: int = 0) -> HeatMaps:
    """The heat maps of the same network with random weights."""
    torch.manual_seed(seed)
    return HeatMaps(
        model_from_record(predictor.record).eval(),
        preprocessing=predictor.preprocessing,
        classes=predictor.classes,
        labels=SingleLabel,
        device=predictor.device,
    )
