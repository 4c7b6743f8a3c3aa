"""The validation of a run: moving average, modes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toys import after_each_step, build, weights

from ffn.engine import loop
from ffn.engine.checkpoints import load_checkpoint


@pytest.mark.slow
def test_average_of_the_weights_is_validated_and_saved(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    evaluate = loop.evaluate

    def compare(run: loop.Run) -> Any:
        network = run.train_step.network
        for key, value in network.state_dict().items():
            torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)
        validated.append(network)
        return evaluate(run)

    after_each_step(run, watch)
    monkeypatch.setattr(loop, "evaluate", compare)
    loop.train(run)

    assert len(validated) == 2
    for key, value in weights(tmp_path / "run").items():
        torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)
        assert key in weights(tmp_path / "run", "best.pt")
    raw = load_checkpoint(tmp_path / "run/last.pt")["training"]["weights"]
    assert any(not torch.equal(value, expected[key]) for key, value in raw.items())


def test_validation_measures_every_count_and_leaves_the_mode_of_every_module(
    videos: Path, tmp_path: Path
) -> None:
    """A run sets the training mode once, at its start."""
    run = build(videos, tmp_path / "run")
    model = run.train_step.model
    frozen = next(m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)).eval()

    measures, failed = loop.evaluate(run)

    assert not frozen.training
    assert all(m.training for m in model.modules() if m is not frozen)
    assert (set(measures), failed) == ({2, 3, 4}, ())
