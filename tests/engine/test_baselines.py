"""Mixed and proportional sampling: clips and draws by hand, and what a checkpoint knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_toys import MIXED, PROPORTIONAL, build, tiny, train, weights
from torch import Tensor, nn

from ffn.cli import main
from ffn.engine.checkpoints import load_checkpoint
from ffn.engine.tasks import (
    ProportionalSamplingOptions,
    ProportionalSamplingTask,
    mix_frames,
)
from ffn.evaluation import load_table
from ffn.serve import Predictor

PLAIN = ("task.name=plain", "task.frames=[4]")


def first_mixed_frame(mixed: Tensor, large: Tensor, small: Tensor) -> int | None:
    """Where the frames of one video are mixed, checked frame by frame; None: nowhere."""
    frames, length = large.shape[1], small.shape[1]
    same = [torch.equal(mixed[:, t], large[:, t]) for t in range(frames)]
    if all(same):
        return None
    first = same.index(False)
    assert same == [not first <= t < first + length for t in range(frames)]
    for k in range(length):
        expected = (large[:, first + k].double() + small[:, k].double()) / 2
        torch.testing.assert_close(mixed[:, first + k].double(), expected, rtol=1e-6, atol=1e-6)
    return first


def test_frames_are_means_at_uniform_positions_of_a_share_of_the_videos() -> None:
    probability = 0.75
    random = torch.Generator().manual_seed(0)
    large = torch.randn(3000, 2, 6, 1, 1, generator=random)
    small = torch.randn(3000, 2, 4, 1, 1, generator=random)
    before = large.clone()

    torch.manual_seed(1)
    mixed = mix_frames(large, small, probability)

    assert torch.equal(large, before)
    found = [first_mixed_frame(*one) for one in zip(mixed, large, small, strict=True)]
    places = [first for first in found if first is not None]
    deviation = (probability * (1 - probability) / 3000) ** 0.5
    assert len(places) / 3000 == pytest.approx(probability, abs=4 * deviation + 1e-9)
    expected = len(places) / 3  # 4 frames start at 0, 1 or 2 of 6
    assert np.bincount(places) == pytest.approx([expected] * 3, abs=4 * (expected * 2 / 3) ** 0.5)


@pytest.mark.parametrize(
    ("frames", "ranges", "probability", "expected"),
    [
        ([16, 4], [], 0.75, {16: {4: 0.25, 16: 0.75}}),
        ([4, 8, 16], [], 0.4, {16: {4: 0.3, 8: 0.3, 16: 0.4}}),
        ([2, 9], [[1, 2], [7, 9]], 0.6, {9: {1: 0.2, 2: 0.2, 7: 0.2, 8: 0.2, 9: 0.2}}),
    ],
)
def test_one_view_has_every_count(
    frames: list[int], ranges: list[list[int]], probability: float, expected: Any
) -> None:
    options = ProportionalSamplingOptions(
        frames=frames, ranges=ranges, largest_probability=probability
    )
    ((view, drawn),) = ProportionalSamplingTask.views(options).items()
    assert {view: drawn} == {view: pytest.approx(p) for view, p in expected.items()}
    assert ProportionalSamplingTask.from_options(nn.Identity(), options).frames == view


def test_loader_draws_a_count_per_step(videos: Path, tmp_path: Path) -> None:
    """Only its frames are decoded; micro-batches of a step have the same."""
    more = ("task.largest_probability=0.75", "train.grad_accum_steps=2", "data.on_error=skip")
    loader = build(videos, tmp_path / "run", *PROPORTIONAL, *more).train_loader

    counts = []
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        shapes = [{v: tuple(c.shape) for v, c in b["clips"].items()} for b in loader]
        assert all(shape == {4: (3, 3, shape[4][2], 16, 16)} for shape in shapes)
        counts += [shape[4][2] for shape in shapes]

    assert counts[::2] == counts[1::2]
    assert {*counts} == {2, 4}
    draws = [loader.sampler.frame_counts(epoch, 2 * step)[4] for epoch, step in np.ndindex(10, 200)]
    assert draws.count(4) / 2000 == pytest.approx(0.75, abs=4 * (0.75 * 0.25 / 2000) ** 0.5)


@pytest.mark.parametrize(
    "task", [PLAIN, MIXED, PROPORTIONAL], ids=["plain", "mixed", "proportional"]
)
def test_table_and_predictor_know_the_trained_counts(
    videos: Path, tmp_path: Path, task: tuple[str, ...]
) -> None:
    folder = train(videos, tmp_path / "run", *task, "train.epochs=1")

    meta = load_checkpoint(folder / "best.pt")["meta"]
    assert meta["trained_frames"] is None  # plain
    assert {*weights(folder, "best.pt")} == {*tiny().state_dict()}
    assert Predictor(folder / "best.pt").default_frames == 4
    given = [str(folder / "config.yaml"), "--weights", str(folder / "best.pt"), "--no-latency"]
    assert main(["test", *given, "--output", str(tmp_path / "test")]) == 0
    (result,) = load_table(tmp_path / "test/results.json")
    assert result.trained_frames == ((4,) if task is PLAIN else (2, 4))
    assert {row.subnet for row in result.rows} == {None}
