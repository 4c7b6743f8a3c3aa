"""Early end of a run after validations without a better score."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from engine_toys import STEPS, build, read_log, train, train_until

from ffn.engine import loop
from ffn.engine.checkpoints import load_checkpoint
from ffn.engine.run import Run


def with_scores(run: Run, scores: dict[int, float]) -> Run:
    """Let the validation after each epoch find a score."""
    epochs: list[int] = []

    def update_statistics(epoch: int) -> list[str]:
        epochs.append(epoch)
        return []

    def evaluate() -> tuple[dict[int, dict[str, float]], tuple[str, ...]]:
        measures = {"top1": scores[epochs[-1]], "top5": 100.0, "mean_class": 50.0, "failed": 0}
        return dict.fromkeys((2, 3, 4), measures), ()

    run.validator.update_statistics, run.validator.evaluate = update_statistics, evaluate
    return run


@pytest.mark.parametrize(
    ("patience", "every", "scores", "last", "best"),
    [
        (1, 1, (50, 40, 60, 70, 80, 90), 2, 50),
        (2, 2, (0, 50, 0, 50, 0, 49), 6, 50),  # validations, not epochs; an equal one is not better
    ],
)
def test_run_ends_after_its_patience(
    videos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    patience: int,
    every: int,
    scores: tuple[float, ...],
    last: int,
    best: float,
) -> None:
    more = (f"train.patience={patience}", f"train.validate_epochs={every}", "train.epochs=6")
    found = dict(enumerate(scores, 1))
    loop.train(with_scores(build(videos, tmp_path, *more), found))

    entries = read_log(tmp_path, "val")
    assert [entry["epoch"] for entry in entries] == list(range(every, last + 1, every))
    training = load_checkpoint(tmp_path / "last.pt")["training"]
    assert (training["epoch"], training["step"]) == (last, last * STEPS)
    assert training["best"] == best
    assert load_checkpoint(tmp_path / "best.pt")["meta"]["metrics"]["2"]["top1"] == best
    out = capsys.readouterr().out
    stopped = re.findall(r"the run ends after (\d) of 6 epochs", out)
    assert stopped == ([str(last)] if last < 6 else [])


def test_a_run_that_ended_early_is_finished_until_its_patience_is_raised(
    videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    scores = dict(enumerate((50, 40, 60, 30, 30, 30), 1))
    options = ("train.epochs=6", "train.patience=1")
    loop.train(with_scores(build(videos, tmp_path, *options), scores))
    log = (tmp_path / "log.jsonl").read_text()
    capsys.readouterr()

    loop.train(build(videos, tmp_path, *options))
    assert "finished, 2 of 6 epochs are done" in capsys.readouterr().out
    assert (tmp_path / "log.jsonl").read_text() == log

    loop.train(with_scores(build(videos, tmp_path, options[0], "train.patience=2"), scores))
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
