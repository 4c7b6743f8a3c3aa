from __future__ import annotations

import numpy as np
import pytest

from ffn.datasets import motions
from ffn.datasets.motions import CLASSES


@pytest.mark.parametrize("name", CLASSES)
def test_every_pose_of_every_frame_is_uniform(name):
    # A start that is uniform on the circle stays uniform whatever a class adds, unless it looks at
    # the start: the first circular moment of 2000 videos is then below 4/sqrt(2000).
    time = (np.arange(8) + 0.5) / 8
    poses = [motions._poses(name, time, np.random.default_rng([7, i])) for i in range(2000)]
    for key in ("x", "y", "heading", "size"):
        turns = np.stack([np.broadcast_to(pose[key], 8) for pose in poses])
        assert np.abs(np.exp(2j * np.pi * turns).mean(axis=0)).max() < 4 / np.sqrt(2000)


def test_clockwise_motions_turn_clockwise_on_the_screen():
    time = np.linspace(0, 1, 200)
    for name, sign in (("orbit_clockwise", 1), ("orbit_counterclockwise", -1)):
        offsets = motions.MOTIONS[name](time, np.random.default_rng(0))
        x, y = offsets["x"], offsets["y"]  # y points down
        turning = x[:-1] * np.diff(y) - y[:-1] * np.diff(x)
        assert (sign * turning > 0).all()
    spin = motions.MOTIONS["spin_clockwise"](time, np.random.default_rng(0))["heading"]
    assert (np.diff(spin) > 0).all()
