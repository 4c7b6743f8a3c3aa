"""The validation of a run: moving average, score, early stopping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toys import (
    STEPS,
    after_each_step,
    build,
    read_log,
    train,
    train_until,
    weights,
)

from ffn.engine import loop
from ffn.engine.checkpoints import load_checkpoint


@pytest.mark.slow
def test_average_of_the_weights_is_validated_and_saved(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the formula: a_t = d a_(t-1) + (1 - d) w_t with d = min(decay, 1 - t^(-2/3))."""
    run = build(videos, tmp_path / "run", "train.ema_decay=0.5")
    expected: dict[str, torch.Tensor] = {}
    validated, evaluate = [], loop.evaluate

    def watch(number: int) -> None:
        d = min(0.5, 1 - (number + 1) ** (-2 / 3))
        for key, value in run.train_step.model.state_dict().items():
            old = expected.get(key, value)
            new = d * old + (1 - d) * value if value.is_floating_point() else value
            expected[key] = new.clone()

    def compare(run: loop.Run) -> Any:
        for key, value in run.train_step.network.state_dict().items():
            torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)
        validated.append(run)
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


@pytest.mark.slow
def test_a_run_ends_early_until_its_patience_is_raised(
    videos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """An equal score is not better."""

    def evaluate(run: loop.Run) -> tuple[dict[int, dict[str, float]], tuple[str, ...]]:
        score = (50, 50, 60, 30, 30, 90)[run.train_loader.sampler.epoch]
        return {t: {"top1": score, "failed": 0} for t in (2, 3, 4)}, ()

    monkeypatch.setattr(loop, "evaluate", evaluate)
    options = ("train.epochs=6", "train.patience=1")
    train(videos, tmp_path, *options)
    shown = capsys.readouterr().out
    assert "epoch   1  top-1 %  2f  50.0  3f  50.0  4f  50.0  mean  50.0*\n" in shown
    assert "the run ends after 2 of 6 epochs" in shown
    log = (tmp_path / "log.jsonl").read_text()

    train(videos, tmp_path, *options)
    assert "finished, 2 of 6 epochs are done" in capsys.readouterr().out
    assert (tmp_path / "log.jsonl").read_text() == log

    train(videos, tmp_path, options[0], "train.patience=2")
    assert [entry["epoch"] for entry in read_log(tmp_path, "val")] == [1, 2, 3, 4, 5]
    training = load_checkpoint(tmp_path / "last.pt")["training"]
    assert (training["epoch"], training["step"], training["best"]) == (5, 5 * STEPS, 60)
    assert load_checkpoint(tmp_path / "best.pt")["meta"]["metrics"]["2"]["top1"] == 60


def test_a_killed_run_ends_at_the_same_step(videos: Path, tmp_path: Path) -> None:
    """Weights that do not move have the same score in every validation."""
    still = ("optim.lr=1e-12", "train.freeze=[norms]", "train.epochs=6", "train.patience=2")
    more = (*still, "train.save_steps=1")
    train_until(STEPS + 1, videos, tmp_path, *more)
    train(videos, tmp_path, *more)
    training = load_checkpoint(tmp_path / "last.pt")["training"]
    assert (training["step"], training["since_best"]) == (3 * STEPS, 2)
    assert [e["since_best"] for e in read_log(tmp_path, "val")] == [0, 1, 2]
