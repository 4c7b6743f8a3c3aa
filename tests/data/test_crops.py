"""Crops, against interpolation by torch and slices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from ffn.data import EvalTransform, Preprocessing, TrainTransform
from ffn.data.crops import jittered_crop, three_squares


def rng(seed=0):
    return np.random.default_rng(seed)


def noise(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.manual_seed(0))


def test_jittered_crop_is_a_square_of_the_resized_frame():
    """Against torch's interpolation of floats, and a slice."""
    frames, lengths = noise(2, 3, 60, 90), set()
    for seed in range(60):
        out = jittered_crop(frames, 32, rng(seed), (40, 50))
        draws = rng(seed)
        short = round(draws.uniform(40, 50))
        long = int(short * 90 / 60)
        top, left = draws.integers(short - 32 + 1), draws.integers(long - 32 + 1)
        size = (short, long)
        expected = interpolate(frames.float(), size, mode="bilinear", antialias=True).round()
        difference = out - expected[:, :, top : top + 32, left : left + 32]
        assert out.shape == (2, 3, 32, 32)
        assert difference.abs().max() <= 1
        lengths.add(short)
    assert {41, 45, 49} < lengths <= set(range(40, 51))


@pytest.mark.parametrize(
    ("height", "width", "corners"),
    [
        (40, 71, [(0, 0), (0, 16), (0, 31)]),  # left, center, right; SlowFast rounds up
        (71, 40, [(0, 0), (16, 0), (31, 0)]),  # top, center, bottom
        (40, 40, [(0, 0)] * 3),
    ],
)
def test_three_squares_are_slices(height, width, corners):
    frames = noise(2, 3, height, width)
    out = three_squares(frames, 40)
    for square, (top, left) in zip(out, corners, strict=True):
        assert torch.equal(square, frames[:, :, top : top + 40, left : left + 40])


def test_three_crops_take_the_full_short_side_and_one_the_center():
    frames, sizes = noise(2, 80, 120, 3), Preprocessing(crop=32, resize=40)
    one, three = EvalTransform(sizes), EvalTransform(sizes, crops=3)
    assert (one.side, three.side) == (32, 40)
    squares = three(frames)
    assert squares.shape == (3, 2, 3, 40, 40)
    assert torch.equal(squares[1][:, :, 4:36, 4:36], one(frames))


@pytest.mark.parametrize("mode", ["multiscale", "resized", "scale_jitter"])
def test_crops_are_equal_for_all_frames_and_do_not_change_global_generators(mode):
    frame = noise(1, 60, 80, 3)
    transform = TrainTransform(
        Preprocessing(crop=32, resize=32), crop_mode=mode, jitter_scales=(40, 50)
    )
    states = torch.get_rng_state(), np.random.get_state()[1]
    outs = [transform(frame.expand(5, -1, -1, -1), 0, rng(seed))[0] for seed in (0, 0, 1)]
    assert torch.equal(outs[0], outs[0][:1].expand_as(outs[0]))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()
