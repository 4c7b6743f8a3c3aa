"""Early end of a run after validations without a better score."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from engine_toys import STEPS, read_log, train, train_until

from ffn.engine import loop
from ffn.engine.checkpoints import load_checkpoint


@pytest.fixture
def give_scores(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, float]], None]:
    """A function that lets the validation after each epoch find a score."""

    def give(scores: dict[int, float]) -> None:
        def evaluate(run: loop.Run) -> tuple[dict[int, dict[str, float]], tuple[str, ...]]:
            score = scores[run.train_loader.sampler.epoch + 1]
            measures = {"top1": score, "top5": 100.0, "mean_class": 50.0, "failed": 0}
            return dict.fromkeys((2, 3, 4), measures), ()

        monkeypatch.setattr(loop, "evaluate", evaluate)

    return give


@pytest.mark.slow
def test_validations_are_counted_and_an_equal_score_is_not_better(
    videos: Path, tmp_path: Path, give_scores: Callable[[dict[int, float]], None]
) -> None:
    more = ("train.patience=2", "train.validate_epochs=2", "train.epochs=8")
    give_scores(dict(enumerate((0, 50, 0, 50, 0, 49, 0, 90), 1)))
    train(videos, tmp_path, *more)

    assert [entry["epoch"] for entry in read_log(tmp_path, "val")] == [2, 4, 6]
    training = load_checkpoint(tmp_path / "last.pt")["training"]
    assert (training["epoch"], training["step"], training["best"]) == (6, 6 * STEPS, 50)
    assert load_checkpoint(tmp_path / "best.pt")["meta"]["metrics"]["2"]["top1"] == 50


@pytest.mark.slow
def test_a_run_that_ended_early_is_finished_until_its_patience_is_raised(
    videos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    give_scores: Callable[[dict[int, float]], None],
) -> None:
    give_scores(dict(enumerate((50, 40, 60, 30, 30, 30), 1)))
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


def test_a_killed_run_ends_at_the_same_step(videos: Path, tmp_path: Path) -> None:
    """Weights that do not move have the same score in every validation."""
    still = ("optim.lr=1e-12", "train.freeze=[norms]", "train.epochs=6", "train.patience=2")
    more = (*still, "train.save_steps=1")
    train_until(STEPS + 1, videos, tmp_path, *more)
    train(videos, tmp_path, *more)
    training = load_checkpoint(tmp_path / "last.pt")["training"]
    assert (training["step"], training["since_best"]) == (3 * STEPS, 2)
    assert [e["since_best"] for e in read_log(tmp_path, "val")] == [0, 1, 2]
