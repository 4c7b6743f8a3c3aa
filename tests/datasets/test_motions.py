from __future__ import annotations

import numpy as np
import pytest

from ffn.datasets import motions
from ffn.datasets.motions import CLASSES

COUNTS = {
    "sway_three_times": 3,
    "sway_five_times": 5,
    "pulse_once": 1,
    "pulse_three_times": 3,
}


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


@pytest.mark.parametrize(("name", "cycles"), COUNTS.items())
def test_counts_look_the_same_at_few_frames_and_differ_at_sixteen(name, cycles):
    def strongest_frequencies(frames):
        time = (np.arange(frames) + 0.5) / frames
        found = []
        for seed in range(20):
            offsets = motions.MOTIONS[name](time, np.random.default_rng(seed))
            turns = offsets.get("size")
            wave = offsets["x"] if turns is None else np.cos(2 * np.pi * (turns + 0.1))
            found.append(1 + np.abs(np.fft.rfft(wave))[1:].argmax())
        return found

    assert set(strongest_frequencies(16)) == {cycles}
    assert strongest_frequencies(8).count(min(cycles, 8 - cycles)) >= 15  # 3 and 5 are one
    assert strongest_frequencies(4).count(1) >= 15  # 1, 3 and 5 are one
