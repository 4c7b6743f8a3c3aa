"""Range test of the learning rate: on losses that are known, and as a command."""

from __future__ import annotations

import json
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
    RangeTest,
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
    result = range_test(Quadratic(curvature, noise=0.01), iter(()), rates)

    assert result.diverged
    assert 2 < result.rates[-1] * curvature < 50
    found = suggest(result)
    assert 0.001 < found["steepest"] * curvature < 0.1  # e^-1 after 20 steps of 0.05
    assert found["steepest"] < found["lowest"] < result.rates[-1]
    assert found["loss"] == pytest.approx(1, rel=0.05)


def test_averages() -> None:
    """By hand; a loss that is a line over the logarithm of the rate stays this line."""
    expected = np.average([3.0, 1.0, 4.0], weights=[0.95**2, 0.95, 1])
    assert smooth([3.0, 1.0, 4.0])[-1] == pytest.approx(expected)
    rates = rates_up_to(1)
    line = RangeTest(rates, [-math.log(rate) for rate in rates], diverged=False)
    assert line.curve[1] == pytest.approx(-np.log(line.curve[0]))


def test_steepest_point_of_a_known_curve() -> None:
    """A logistic curve with its center at 1e-3 falls fastest there; then it rises."""
    rates = rates_up_to(1, 600)
    losses = [
        1 + 1 / (1 + math.exp(4 * math.log10(rate / 1e-3))) + 50 * max(0, rate - 0.1)
        for rate in rates
    ]
    found = suggest(RangeTest(rates, losses, diverged=False))
    assert math.log10(found["steepest"]) == pytest.approx(-3, abs=0.15)
    assert math.log10(found["lowest"]) == pytest.approx(-1, abs=0.3)


NOISE = np.random.default_rng(0).normal(2.5, 0.3, 300).tolist()


@pytest.mark.parametrize("losses", [NOISE, [1 + i / 300 for i in range(300)], [math.nan]])
def test_loss_that_does_not_fall_gets_no_suggestion(losses: list[float]) -> None:
    result = RangeTest(rates_up_to(1)[: len(losses)], losses, diverged=False)
    assert suggest(result) is None
    assert report_lines(result, None, 1)[1].startswith("no suggestion")


def test_divergence() -> None:
    assert has_diverged(np.array([1.0, math.nan]))
    assert not has_diverged(np.array([1.0, 5.0]))  # too early
    assert not has_diverged(np.array([1.0] * FIRST + [1.0, 1.9]))
    assert has_diverged(np.array([1.0] * FIRST + [1.0, 2.1]))


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
    pytest.importorskip("matplotlib")
    found = []
    for world in (1, 2):
        output = tmp_path / str(world)
        more = options(videos, output, "train.freeze=[norms]", "model.dropout=0")
        more += ["--steps", "50", "--low", "1e-5", "--high", "10"]
        assert forked.train(more, command="find_lr", world=world) == [0] * world
        assert {p.name for p in output.rglob("*.*")} == {"lr_range.json", "lr_range.png"}
        content = json.loads((output / "find_lr/lr_range.json").read_text())
        assert content["rates"][0] == pytest.approx(1e-5)
        assert content["config"]["model"]["name"] == "tsm_tiny"
        assert content["suggestion"] is None or content["suggestion"]["steepest"] > 1e-5
        found.append(content["losses"])
    assert found[1][:20] == pytest.approx(found[0][:20], rel=1e-4)
