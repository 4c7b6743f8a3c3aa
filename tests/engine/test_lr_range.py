"""Range test of the learning rate: on losses that are known, and as a command."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import numpy as np
import pytest
import torch
from engine_toys import CPU, config, options

from ffn.engine.build import build_run, build_training
from ffn.engine.lr_range import (
    FIRST,
    endless,
    has_diverged,
    range_test,
    report_lines,
    smooth,
    suggest,
)


class Quadratic:
    """Gradient descent on ``c w^2 / 2`` with noise: it diverges at rates above 2 / c."""

    def __init__(self, curvature: float, noise: float = 0.0) -> None:
        self.curvature, self.noise, self.world = curvature, noise, CPU
        self.w = 10 / math.sqrt(curvature)
        self.rng = np.random.default_rng(0)

    def step(self, batches: Any, *, number: int, lr: float) -> SimpleNamespace:
        loss = self.curvature * self.w**2 / 2 + 1 + self.noise * self.rng.normal()
        self.w -= lr * self.curvature * self.w
        bad = not math.isfinite(loss)
        outputs = [{"loss": torch.tensor(loss)}]
        return SimpleNamespace(outputs=outputs, warning="not finite" if bad else None)


def rates_up_to(high: float, steps: int = 300) -> list[float]:
    return np.geomspace(1e-6, high, steps).tolist()


def test_test_of_a_parabola_ends_where_it_diverges() -> None:
    curvature = 30.0
    rates = np.geomspace(1e-5 / curvature, 1e3 / curvature, 400).tolist()
    done, losses = range_test(Quadratic(curvature, noise=0.01), iter(()), rates)

    assert has_diverged(losses)
    assert 2 < done[-1] * curvature < 50
    assert 0.01 < suggest(done, losses) * curvature < 0.5


def test_suggestion_for_a_known_curve() -> None:
    """A logistic curve with its center at 1e-3, which rises from 1e-1 on."""
    rates = rates_up_to(1, 600)
    losses = [
        1 + 1 / (1 + math.exp(4 * math.log10(rate / 1e-3))) + 50 * max(0, rate - 0.1)
        for rate in rates
    ]
    assert math.log10(suggest(rates, losses)) == pytest.approx(-2, abs=0.3)


NOISE = np.random.default_rng(0).normal(2.5, 0.3, 300).tolist()


@pytest.mark.parametrize("losses", [NOISE, [1 + i / 300 for i in range(300)], [math.nan]])
def test_loss_that_does_not_fall_gets_no_suggestion(losses: list[float]) -> None:
    rates = rates_up_to(1)[: len(losses)]
    assert suggest(rates, losses) is None
    assert report_lines(rates, losses, 1)[-1].startswith("no suggestion")


def test_averages_and_divergence_by_hand() -> None:
    expected = np.average([3.0, 1.0, 4.0], weights=[0.95**2, 0.95, 1])
    assert smooth([3.0, 1.0, 4.0])[-1] == pytest.approx(expected)
    assert has_diverged([1.0, math.nan])
    assert not has_diverged([1.0, 50.0])  # too early
    assert not has_diverged([*[1.0] * (FIRST + 1), 10.0])
    assert has_diverged([*[1.0] * (FIRST + 1), 100.0])


def test_a_new_run_takes_the_same_steps(videos: Path, tmp_path: Path) -> None:
    """With a constant rate; an epoch and a half."""
    given = config(videos, tmp_path / "run", "train.class_weights=balanced")
    training, run = build_training(given, CPU), build_run(given, CPU)
    range_test(training.step, endless(training.loader), [0.01] * 6)
    assert not (tmp_path / "run").exists()

    batches = endless(run.train_loader)
    for number in range(6):
        run.train_step.step(batches, number=number, lr=0.01)
    expected = run.train_step.model.state_dict()
    found = training.step.model.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in found.items())


@pytest.mark.slow
def test_command_in_one_process_and_in_two(videos: Path, tmp_path: Path) -> None:
    more = options(videos, tmp_path / "run", "train.freeze=[norms]", "model.dropout=0")
    more += ["--steps", "50", "--low", "1e-5", "--high", "10"]
    tables = []
    for world in (1, 2):
        output = tmp_path / str(world)
        assert forked.train(more, command="find_lr", world=world, output=output) == [0] * world
        lines = output.read_text().splitlines()
        assert "suggestion" in lines[-1]
        first = lines.index("     optim.lr  smoothed loss") + 1
        tables.append([[float(word) for word in line.split()] for line in lines[first:][:8]])
    assert np.array(tables[1]) == pytest.approx(np.array(tables[0]), rel=1e-2)
    assert not (tmp_path / "run").exists()
