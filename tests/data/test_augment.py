"""Augmentations: equal for all frames, drawn from the sample's generator; their distributions."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.auto_augment import rand_augment_transform

from ffn.data import Preprocessing, TrainTransform
from ffn.data.augment import ColorJitter, RandAugment, RandomErasing

POLICY = "rand-m7-n4-mstd0.5-inc1"
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
CHANGES = {
    "color": lambda: ColorJitter([0.4, 0.4, 0.4, 0.1]),
    "randaugment": lambda: RandAugment(POLICY),
    "erasing": lambda: RandomErasing(1.0, MEAN, STD),
}


def rng(seed=0):
    return np.random.default_rng(seed)


def noise(*shape):
    """Noise in blocks of 8 pixels, since a rotation blurs single pixels."""
    generator = torch.Generator().manual_seed(0)
    *outer, height, width = shape
    coarse = torch.rand(*outer, height // 8, width // 8, generator=generator)
    return (255 * coarse.repeat_interleave(8, -1).repeat_interleave(8, -2)).to(torch.uint8)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_frame_does_not_depend_on_other_frames(change):
    """Views with different frames therefore agree, and equal frames stay equal."""
    frames, changed = noise(5, 3, 48, 64), 0
    before = frames.clone()
    for seed in range(8):
        together = change()(frames, rng(seed))
        alone = [change()(frames[i : i + 1], rng(seed)) for i in range(5)]
        assert torch.equal(together, torch.cat(alone))
        changed += not torch.equal(together, frames)
    assert changed >= 6
    assert torch.equal(frames, before)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_draws_come_from_the_samples_generator_only(change):
    frames = noise(2, 3, 48, 64)
    expected = change()(frames, rng(3))
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    assert torch.equal(change()(frames, rng(3)), expected)
    assert not torch.equal(change()(frames, rng(4)), expected)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    assert random.getstate() == before[2]


def test_randaugment_is_timms():
    """The same result as timm's transform of each image with the same seed."""
    frames = noise(3, 3, 48, 64)
    settings = {"img_mean": (1, 2, 3), "interpolation": Image.Resampling.BICUBIC}
    timms = rand_augment_transform(POLICY, settings)
    for seed in range(10):
        out = RandAugment(POLICY, fill=(1, 2, 3))(frames, rng(seed))
        number = int(rng(seed).integers(2**32))
        for frame, found in zip(frames, out, strict=True):
            np.random.seed(number)
            random.seed(number)
            expected = np.array(timms(Image.fromarray(frame.permute(1, 2, 0).numpy())))
            assert np.array_equal(found.permute(1, 2, 0).numpy(), expected)


def test_erased_box_and_noise():
    frames = torch.full((2, 3, 100, 120), 7, dtype=torch.uint8)
    areas, pixels = [], []
    for seed in range(150):
        out = RandomErasing(1.0, MEAN, STD)(frames, rng(seed))
        rows, columns = ((out[0] != 7).any(0).any(d).nonzero().flatten() for d in (1, 0))
        top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
        outside = torch.ones(100, 120, dtype=torch.bool)
        outside[top:bottom, left:right] = False
        assert (out[..., outside] == 7).all()
        areas.append((bottom - top) * (right - left) / 12000)
        pixels.append(out[0, :, top:bottom, left:right].flatten(1))
    assert 0.018 < min(areas) < 0.04
    assert 0.29 < max(areas) < 0.345
    values = torch.cat(pixels, 1).double() / 255
    assert values.mean(1).tolist() == pytest.approx(MEAN, abs=0.02)
    assert values.std(1).tolist() == pytest.approx(STD, abs=0.04)  # clipped at 0 and 1


def test_noise_of_bgr_weights_has_their_channel_order():
    frames = torch.zeros(1, 64, 64, 3, dtype=torch.uint8)
    sizes = {"crop": 64, "resize": 64, "mean": (0.1, 0.5, 0.9), "std": (0.01, 0.01, 0.01)}
    for color, red in (("rgb", 0.1), ("bgr", 0.9)):
        transform = TrainTransform(Preprocessing(**sizes, color=color), random_erasing=1.0)
        out, _ = transform(frames, 0, rng())
        erased = out[0, 0][out[0, 1] > 0].double() / 255
        assert erased.mean() == pytest.approx(red, abs=0.02)
