"""Training and test transforms, against torchvision and torch operations."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate
from torchvision.transforms.v2 import functional as F

from ffn.data import EvalTransform, Normalize, Preprocessing, TrainTransform, swap_pairs
from ffn.data.crops import draw_crop, jittered_crop, three_squares


def rng(seed=0):
    return np.random.default_rng(seed)


def noise(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.manual_seed(0))


def ramps(height, width):
    """A frame whose first channel is its row and second its column."""
    rows = torch.arange(height).view(-1, 1).expand(height, width)
    columns = torch.arange(width).view(1, -1).expand(height, width)
    return torch.stack([rows, columns, torch.zeros_like(rows)], dim=-1).to(torch.uint8)[None]


def test_preprocessing_goes_through_json():
    made = Preprocessing(crop=64, resize=80, mean=[0.4, 0.5, 0.6], color="bgr", sampling="dense")
    assert Preprocessing.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_preprocessing_is_strict():
    for values in ({"crop": 256}, {"std": (0.1, 0.0, 0.2)}, {"color": "RGB"}, {"sampling": "no"}):
        with pytest.raises(ValueError, match=next(iter(values))):
            Preprocessing(**{"crop": 224, "resize": 224, **values})
    with pytest.raises(ValueError, match="colour; expected crop"):
        Preprocessing.from_dict({**Preprocessing().to_dict(), "colour": "rgb"})


def test_eval_resizes_and_crops():
    frames = noise(2, 60, 81, 3)
    out = EvalTransform(Preprocessing(crop=32, resize=40))(frames)
    x = frames.permute(0, 3, 1, 2).float()
    expected = interpolate(x, (40, 54), mode="bilinear", antialias=True)[:, :, 4:36, 11:43]
    assert out.shape == (2, 3, 32, 32)
    assert out.dtype == torch.uint8
    difference = out - expected.round()  # torchvision rounds after each axis
    assert difference.abs().max() <= 1
    assert difference.abs().mean() < 0.2


@pytest.mark.parametrize("color", ["rgb", "bgr"])
def test_clips_are_normalized_as_frames(color):
    """Against torchvision's normalization of each frame of a clip."""
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    clip = noise(2, 3, 4, 5, 6)
    out = Normalize(Preprocessing(8, 8, mean, std, color))(clip)
    assert out.dtype == torch.float32
    assert out.is_contiguous()
    for b in range(2):
        for t in range(4):
            frame = clip[b, :, t] if color == "rgb" else clip[b, [2, 1, 0], t]
            expected = F.normalize(F.to_dtype(frame, torch.float32, scale=True), mean, std)
            assert torch.equal(out[b, :, t], expected)
    for wrong in clip.float(), clip[0]:
        with pytest.raises(ValueError, match=r"expected uint8 RGB \(B, 3, T, H, W\)"):
            Normalize(Preprocessing())(wrong)
    by_hand = (clip[1, 0 if color == "rgb" else 2, 3, 4, 5].item() / 255 - 0.1) / 0.5
    assert out[1, 0, 3, 4, 5].item() == pytest.approx(by_hand, abs=1e-6)


def test_crop_sizes_and_positions_are_those_of_tsn():
    sizes = {256: 0, 224: 1, 192: 2, 168: 3}
    generator, seen = rng(), set()
    for _ in range(4000):
        top, left, height, width = draw_crop(256, 340, generator)
        assert abs(sizes[height] - sizes[width]) <= 1
        down, right = (256 - height) // 4, (340 - width) // 4
        position = (down and top // down, left // right)
        assert (top, left) == (position[0] * down, position[1] * right)
        seen.add((height, width, *position))
    heights = {pair[:2] for pair in seen}
    assert len(heights) == 10
    positions = {s[2:] for s in seen if s[:2] == (192, 192)}
    assert positions == {
        *((a, b) for a in (0, 2, 4) for b in (0, 2, 4)),
        *((1, 1), (1, 3), (3, 1), (3, 3)),
    }


def test_train_crops_the_window_that_is_drawn():
    transform = TrainTransform(Preprocessing(crop=128, resize=128), scales=(0.5,))
    for seed in range(10):
        top, left, height, width = draw_crop(256, 256, rng(seed), (0.5,))
        out, label = transform(ramps(256, 256), 3, rng(seed))
        assert (height, width, label) == (128, 128, 3)
        assert out[0, 0, :, 0].tolist() == list(range(top, top + 128))
        assert out[0, 1, 0].tolist() == list(range(left, left + 128))


@pytest.mark.parametrize(("flip", "pairs"), [("none", ()), ("random", ()), ("swap", [[0, 3]])])
def test_flip_changes_sides_and_labels(flip, pairs):
    transform = TrainTransform(
        Preprocessing(crop=64, resize=64), scales=(1,), flip=flip, flip_pairs=pairs
    )
    mirrored = []
    for seed in range(60):
        outs = [transform(ramps(64, 64), label, rng(seed)) for label in (0, 1, 3)]
        across = outs[0][0][0, 1, 0]
        mirrored.append(bool(across[0] > across[-1]))
        exchanged = flip == "swap" and mirrored[-1]
        assert [label for _, label in outs] == ([3, 1, 0] if exchanged else [0, 1, 3])
        assert torch.equal(outs[0][0], outs[1][0])
    assert (15 < sum(mirrored) < 45) if flip != "none" else not any(mirrored)


def test_train_refuses():
    for options in (
        {"flip": "yes"},
        {"flip": "random", "flip_pairs": [[0, 1]]},
        {"flip": "swap", "flip_pairs": [[0, 1], [1, 2]]},
        {"scales": (1.2,)},
        {"crop_mode": "random"},
        {"aspect": (2.0, 1.0), "crop_mode": "resized"},
        {"jitter_scales": (200, 256), "crop_mode": "scale_jitter"},
        {"random_erasing": 1.2},
        {"color_jitter": (0.4, 0.4, 0.4)},
        {"color_jitter": (0.4, 0.4, 0.4, 0.6)},
        {"randaugment": "rand-m11"},
        {"randaugment": "rand-m7-n4-mstd"},
    ):
        with pytest.raises(ValueError, match=f"{next(iter(options))}|hue|interval"):
            TrainTransform(Preprocessing(), **options)


def test_swap_pairs_takes_names():
    classes = ["down", "left", "right", "up"]
    assert swap_pairs([["left", "right"], ["up", "down"]], classes) == [[1, 2], [3, 0]]
    with pytest.raises(ValueError, match=r"'lft', which is not .*closest is 'left'"):
        swap_pairs([["lft", "right"]], classes)
    with pytest.raises(ValueError, match="each class in one pair"):
        swap_pairs([["left", "right"], ["right", "up"]], classes)


def test_tests_refuse():
    with pytest.raises(ValueError, match="crops is 5; expected 1"):
        EvalTransform(Preprocessing(), crops=5)
    for frames in torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.zeros(2, 8, 8, 3):
        with pytest.raises(ValueError, match=r"expected uint8 \(N, H, W, 3\)"):
            EvalTransform(Preprocessing(crop=8, resize=8))(frames)


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


def test_a_flip_exchanges_each_of_several_labels():
    transform = TrainTransform(
        Preprocessing(crop=8, resize=8), flip="swap", flip_pairs=[[0, 3]], scales=[1.0]
    )
    frames = torch.zeros(1, 8, 8, 3, dtype=torch.uint8)
    frames[:, :, :4] = 255
    found = set()
    for seed in range(20):
        x, label = transform(frames, (0, 1), rng(seed))
        found.add((bool(x[0, 0, 0, 0]), label))  # whether the left side is bright
    assert found == {(True, (0, 1)), (False, (1, 3))}
