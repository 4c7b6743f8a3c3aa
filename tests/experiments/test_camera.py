from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from camera import CLASSES, LEVERS, draw, leaves, look, main, poses
from PIL import Image

SIZE = 32


def frame(**pose: float) -> torch.Tensor:
    """What a camera with this pose sees of one picture; all calls look at the same part."""
    pose = {axis: np.array([pose.get(axis, 0.0)]) for axis in LEVERS}
    picture = leaves(np.random.default_rng(0))
    return look(picture, pose, (SIZE, SIZE), np.random.default_rng(7))[0]


def test_the_picture_moves_against_the_camera():
    """A step of a quarter is a shift of a quarter; a quarter turn, and twice the zoom."""
    start, quarter = frame(), SIZE // 4
    right, down = frame(x=0.25), frame(y=0.25)
    torch.testing.assert_close(right[:, :, :-quarter], start[:, :, quarter:], atol=0.1, rtol=0)
    torch.testing.assert_close(down[:, :-quarter], start[:, quarter:], atol=0.1, rtol=0)
    turned = frame(roll=math.pi / 2)
    torch.testing.assert_close(turned, start.rot90(1, (1, 2)), atol=0.1, rtol=0)

    near = F.avg_pool2d(frame(zoom=math.log(2)), 2)
    middle = start[:, quarter:-quarter, quarter:-quarter]
    assert (near - middle).abs().mean() < 0.2 * (start - middle.mean()).abs().mean()


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_moves_its_axis(name):
    for seed in range(30):
        pose = poses(name, np.linspace(0, 1, 40), np.random.default_rng(seed))
        moved = {axis: LEVERS[axis] * (pose[axis][-1] - pose[axis][0]) for axis in LEVERS}
        main_axis, sign = CLASSES[name] or ("x", 1)
        largest = max(moved, key=lambda axis: abs(moved[axis]))
        if CLASSES[name] is None:
            assert abs(moved[largest]) < 0.1, seed
        else:
            assert (largest, sign * moved[largest] > 0) == (main_axis, True), seed


def test_writes_videos_of_the_footage_of_each_split(tmp_path):
    for split, color in (("train", (255, 0, 0)), ("val", (0, 0, 255))):
        (tmp_path / "footage" / split).mkdir(parents=True)
        Image.new("RGB", (64, 64), color).save(tmp_path / "footage" / split / "picture.png")
    sources = ["--sources", str(tmp_path / "footage"), "--clips-per-class", "1", "1"]
    main([str(tmp_path / "camera"), *sources, "--size", "16", "--frames", "4", "--workers", "0"])
    assert (tmp_path / "camera/classes.txt").read_text().split() == [*CLASSES]
    assert len([*(tmp_path / "camera/videos").iterdir()]) == 2 * len(CLASSES)

    (tmp_path / "footage/val/picture.png").unlink()
    with pytest.raises(SystemExit, match="val has no pictures or videos"):
        main([str(tmp_path / "other"), *sources])
    assert not (tmp_path / "other").exists()


def test_draws_the_same_from_the_same_seed():
    one, two = (draw("zoom_in", "val", np.random.default_rng(3), frames=6) for _ in range(2))
    assert (len(one), one.dtype, min(one.shape[1:3])) == (6, np.uint8, 48)
    assert np.array_equal(one, two)
