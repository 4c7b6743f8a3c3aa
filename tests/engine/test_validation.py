"""The validation of a run: moving average, exact BatchNorm statistics, score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toys import after_each_step, build, weights

from ffn.engine import loop
from ffn.engine.checkpoints import load_checkpoint


@pytest.mark.slow
def test_average_of_the_weights_is_validated_and_saved(videos: Path, tmp_path: Path) -> None:
    """By the formula: a_t = d a_(t-1) + (1 - d) w_t with d = min(decay, 1 - t^(-2/3))."""
    run = build(videos, tmp_path / "run", "train.ema_decay=0.5")
    expected: dict[str, torch.Tensor] = {}
    validated = []

    def watch(number: int) -> None:
        d = min(0.5, 1 - (number + 1) ** (-2 / 3))
        for key, value in run.train_step.model.state_dict().items():
            old = expected.get(key, value)
            new = d * old + (1 - d) * value if value.is_floating_point() else value
            expected[key] = new.clone()

    evaluate = run.validator.evaluate

    def compare() -> Any:
        network = run.validator.train_step.network
        for key, value in network.state_dict().items():
            torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)
        validated.append(network)
        return evaluate()

    after_each_step(run, watch)
    run.validator.evaluate = compare
    loop.train(run)

    assert len(validated) == 2
    for key, value in weights(tmp_path / "run").items():
        torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)
        assert key in weights(tmp_path / "run", "best.pt")
    raw = load_checkpoint(tmp_path / "run/last.pt")["training"]["weights"]
    assert any(not torch.equal(value, expected[key]) for key, value in raw.items())


def test_without_readable_videos_statistics_are_kept(videos: Path, tmp_path: Path) -> None:
    run = build(videos, tmp_path / "run", "train.precise_bn=2", "data.on_error=skip")
    before = {key: value.clone() for key, value in run.train_step.network.state_dict().items()}
    run.train_step.has_videos = lambda batch: False

    (message,) = run.validator.update_statistics(0)

    assert "found no readable video" in message
    for key, value in run.train_step.network.state_dict().items():
        assert torch.equal(value, before[key])


def test_frozen_norms_need_no_clips(videos: Path, tmp_path: Path) -> None:
    frozen = "train.freeze=[net.conv1, net.bn1, net.layer*]"
    run = build(videos, tmp_path / "run", frozen, "train.precise_bn=1")
    assert run.validator.update_statistics(0) == []


def test_validation_measures_every_count_and_leaves_the_mode_of_every_module(
    videos: Path, tmp_path: Path
) -> None:
    """A run sets the training mode once, at its start. The score is of the trained counts."""
    run = build(videos, tmp_path / "run", "train.precise_bn=1")
    model = run.train_step.model
    frozen = next(m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)).eval()

    run.validator.update_statistics(0)
    measures, failed = run.validator.evaluate()

    assert not frozen.training
    assert all(m.training for m in model.modules() if m is not frozen)
    assert (set(measures), failed) == ({2, 3, 4}, ())
    assert run.validator.score({2: {"top1": 30.0}, 3: {"top1": 99.0}, 4: {"top1": 50.0}}) == 40.0
