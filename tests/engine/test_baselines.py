"""Mixed and proportional sampling: clips, losses and draws by hand; resumed and parallel runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_toys import (
    CPU,
    STEPS,
    build,
    read_log,
    same_weights,
    tiny,
    train,
    train_until,
    weights,
)
from rank_cases import steps_of_run
from ranks import Ranks
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

MIXED = ("task.name=mixed_sampling", "task.frames=[2,4]", "task.mix_probability=0.6")
PROPORTIONAL = ("task.name=proportional_sampling", "task.frames=[2,4]")
TASK_OPTIONS = pytest.mark.parametrize("task", [MIXED, PROPORTIONAL], ids=["mixed", "proportional"])


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


# --- mixed sampling ------------------------------------------------------------------------------


def test_frames_are_means_at_uniform_positions_of_a_share_of_the_videos() -> None:
    probability = 0.75
    random = torch.Generator().manual_seed(0)
    large = torch.randn(3000, 2, 6, 1, 1, generator=random)
    small = torch.randn(3000, 2, 4, 1, 1, generator=random)
    before = large.clone(), small.clone()

    torch.manual_seed(1)
    mixed = mix_frames(large, small, probability)

    assert torch.equal(large, before[0])
    assert torch.equal(small, before[1])
    found = [first_mixed_frame(*one) for one in zip(mixed, large, small, strict=True)]
    places = [first for first in found if first is not None]
    deviation = (probability * (1 - probability) / 3000) ** 0.5
    assert len(places) / 3000 == pytest.approx(probability, abs=4 * deviation + 1e-9)
    counts = np.bincount(places, minlength=3)
    assert len(counts) == 3  # 4 frames start at 0, 1 or 2 of 6
    expected = len(places) / 3
    assert counts == pytest.approx([expected] * 3, abs=4 * (expected * 2 / 3) ** 0.5)


# --- proportional sampling -----------------------------------------------------------------------


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

    (view, drawn), *others = ProportionalSamplingTask.views(options).items()

    assert not others
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
    assert loader.sampler.frame_counts(0, 0)[4] == counts[0]


# --- runs ----------------------------------------------------------------------------------------


@pytest.mark.slow
@TASK_OPTIONS
def test_resumed_run_equals_an_uninterrupted_one(
    videos: Path, tmp_path: Path, task: tuple[str, ...]
) -> None:
    """With dropout, mixup and micro-batches; in an epoch and in a validation."""
    more = (*task, "train.mixup=0.8", "train.grad_accum_steps=2", "train.ema_decay=0.5")
    more += ("train.save_steps=1",)
    whole = train(videos, tmp_path / "whole", *more, "data.workers=1")

    for step in (3, STEPS):
        train_until(step, videos, tmp_path / "run", *more, "train.views=sequential")
    train(videos, tmp_path / "run", *more)

    assert same_weights(tmp_path / "run", whole)
    losses = [[entry["loss"] for entry in read_log(tmp_path / name)] for name in ("run", "whole")]
    assert losses[0] == losses[1]
    one, other = (load_checkpoint(f / "last.pt")["training"] for f in (tmp_path / "run", whole))
    assert all(torch.equal(value, other["weights"][key]) for key, value in one["weights"].items())


@pytest.mark.slow
@TASK_OPTIONS
def test_two_processes_train_one_network(
    two_ranks: Ranks, videos: Path, tmp_path: Path, task: tuple[str, ...]
) -> None:
    """Proportional sampling: as one process, because all draw the same count."""
    more = (*task, "train.freeze=[norms]", "model.dropout=0", "optim.lr=0.1")
    one, other = two_ranks.run(steps_of_run, videos, tmp_path / "two", more)

    assert one["counts"] == other["counts"]
    assert all(torch.equal(value, other["state"][key]) for key, value in one["state"].items())
    if task is PROPORTIONAL:
        alone = steps_of_run(CPU, videos, tmp_path / "one", more)
        assert alone["counts"] == one["counts"]
        assert {2, 4} == {*alone["counts"]}
        for key, value in alone["state"].items():
            torch.testing.assert_close(one["state"][key], value, rtol=1e-4, atol=1e-6)


@TASK_OPTIONS
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
    assert result.trained_frames == (2, 4)
    assert {row.subnet for row in result.rows} == {None}
