"""The validation of a run: every count, and early stopping."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_toys import STEPS, build, read_log, train

from ffn.engine import loop
from ffn.engine.checkpoints import load_checkpoint


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
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
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
