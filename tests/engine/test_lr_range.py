"""Range test of the learning rate: on losses that are known, and as a command."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from engine_toys import CPU, ROOT, config, options, state_of, train

from ffn.cli import main
from ffn.engine.build import build_range_test, build_run
from ffn.engine.lr_range import (
    FIRST,
    RangeTest,
    endless,
    has_diverged,
    learning_rates,
    range_test,
    report_lines,
    save_range_test,
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


def test_average_is_corrected_as_adams() -> None:
    losses = [3.0, 1.0, 4.0, 1.0, 5.0]
    expected = []
    for end in range(1, 6):
        weights = np.array([0.9 ** (end - i) for i in range(1, end + 1)])
        expected.append((weights * losses[:end]).sum() / weights.sum())
    assert smooth(losses, 0.9) == pytest.approx(expected)
    assert smooth([2.0] * 5) == pytest.approx([2.0] * 5)


@pytest.mark.parametrize("curvature", [0.1, 1.0, 30.0])
def test_test_of_a_parabola_ends_where_it_diverges(curvature: float) -> None:
    rates = learning_rates(1e-5 / curvature, 1e3 / curvature, 400)
    result = range_test(Quadratic(curvature, noise=0.01), iter(()), rates)

    assert result.diverged
    assert 2 < result.rates[-1] * curvature < 50
    found = suggest(result)
    assert 0.001 < found.steepest * curvature < 0.1  # e^-1 after 20 steps of 0.05
    assert found.steepest < found.lowest < result.rates[-1]  # w is 0 before the rate reaches 2 / c
    assert found.loss == pytest.approx(1, rel=0.05)


def test_smoothed_losses_stand_at_the_rates_that_they_average() -> None:
    """A loss that is a line over the logarithm of the rate stays this line."""
    rates = learning_rates(1e-4, 1, 200)
    result = RangeTest(rates, [-math.log(rate) for rate in rates], diverged=False)
    expected = [-math.log(rate) for rate in result.smoothed_rates]
    assert result.smoothed == pytest.approx(expected)


def test_steepest_point_of_a_known_curve() -> None:
    """A logistic curve with its center at 1e-3 falls fastest there; then it rises."""
    rates = learning_rates(1e-6, 1, 600)
    losses = [
        1 + 1 / (1 + math.exp(4 * math.log10(rate / 1e-3))) + 50 * max(0, rate - 0.1)
        for rate in rates
    ]
    found = suggest(RangeTest(rates, losses, diverged=False))
    assert math.log10(found.steepest) == pytest.approx(-3, abs=0.15)
    assert math.log10(found.lowest) == pytest.approx(-1, abs=0.3)


@pytest.mark.parametrize("seed", range(5))
def test_noise_gets_no_suggestion(seed: int) -> None:
    rng = np.random.default_rng(seed)
    losses = (2.5 + 0.3 * rng.normal(size=300)).tolist()
    assert suggest(RangeTest(learning_rates(1e-6, 1, 300), losses, diverged=False)) is None


@pytest.mark.parametrize("losses", [[2.5] * 300, [1 + i / 300 for i in range(300)], [math.nan]])
def test_loss_that_does_not_fall_gets_no_suggestion(losses: list[float]) -> None:
    result = RangeTest(learning_rates(1e-6, 1, 300)[: len(losses)], losses, diverged=False)
    assert suggest(result) is None
    assert report_lines(result, None, 1)[1].startswith("no suggestion")


def test_divergence() -> None:
    assert has_diverged([1.0, math.nan])
    assert has_diverged([1.0, math.inf])
    assert not has_diverged([1.0, 5.0])  # too early
    assert not has_diverged([1.0] * FIRST + [1.0, 1.9])
    assert has_diverged([1.0] * FIRST + [1.0, 2.1])


def test_report_scales_to_the_base_batch_size(tmp_path: Path) -> None:
    rates = learning_rates(1e-4, 1, 200)
    losses = [3 - 0.2 * math.log(rate / 1e-4) for rate in rates]
    result = RangeTest(rates, [*losses[:-1], math.inf], diverged=True)
    found = suggest(result)
    *_, last = report_lines(result, found, scale=4)
    assert last.startswith(
        f"suggestion: optim.lr from {found.steepest / 4:.2g} to {found.lowest / 4:.2g}"
    )

    pytest.importorskip("matplotlib")
    text, figure = save_range_test(result, found, tmp_path / "new", {"seed": 1})
    content = json.loads(text.read_text())
    assert content["suggestion"]["steepest"] == found.steepest
    assert (content["losses"][:-1], content["losses"][-1]) == (losses[:-1], None)
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_steps_are_those_of_training(videos: Path, tmp_path: Path) -> None:
    """With a constant rate, the weights are those of a run without a moving average."""
    more = ("optim.milestones=[]", "train.ema_decay=0.9")
    given = config(videos, tmp_path / "run", *more, "train.class_weights=balanced")
    step, loader = build_range_test(given, CPU)
    assert step.ema is None
    range_test(step, endless(loader), [0.01] * 6)  # an epoch and a half
    assert not (tmp_path / "run").exists()

    run = build_run(given, CPU)
    number = itertools.count()
    for epoch in range(2):
        run.train_loader.sampler.set_epoch(epoch)
        batches = iter(run.train_loader)
        for _ in range(4 if epoch == 0 else 2):
            run.train_step.step(batches, number=next(number), lr=0.01)
    expected = state_of(run.train_step.model)
    assert all(torch.equal(value, expected[k]) for k, value in step.model.state_dict().items())


@pytest.fixture
def empty(tmp_path: Path) -> str:
    (tmp_path / "empty.yaml").write_text("{}\n")
    return str(tmp_path / "empty.yaml")


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_command_leaves_a_run_alone(
    videos: Path, tmp_path: Path, empty: str, capsys: pytest.CaptureFixture
) -> None:
    pytest.importorskip("matplotlib")
    folder = train(videos, tmp_path / "run", "train.epochs=1", "optim.milestones=[]")
    before = files(folder)
    command = [
        "find_lr",
        empty,
        *options(videos, folder),
        "--steps",
        "50",
        "--low",
        "1e-5",
        "--high",
        "10",
    ]
    capsys.readouterr()

    assert main(command) == 0
    out = capsys.readouterr().out
    assert "steps at learning rates from 1e-05 to" in out
    assert "suggestion" in out
    new = files(folder).keys() - before.keys()
    assert new == {"find_lr/lr_range.json", "find_lr/lr_range.png"}
    assert {name: files(folder)[name] for name in before} == before
    content = json.loads((folder / "find_lr/lr_range.json").read_text())
    assert content["rates"][0] == pytest.approx(1e-5)
    assert len(content["rates"]) == len(content["losses"]) == len(content["smoothed"])
    assert content["config"]["model"]["name"] == "tsm_tiny"

    assert main(command) == 2
    assert "lr_range.json exists; choose another --output" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0
    # the run goes on as before
    train(videos, folder, "train.epochs=1", "optim.milestones=[]")


@pytest.mark.slow
def test_two_processes_measure_the_loss_of_one(videos: Path, tmp_path: Path, empty: str) -> None:
    pytest.importorskip("matplotlib")
    found = []
    for processes in (1, 2):
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        output = tmp_path / str(processes)
        arguments = options(videos, output, "train.freeze=[norms]", "model.dropout=0")
        arguments += ["--steps", "50", "--low", "1e-6", "--high", "1e-3"]
        subprocess.run(
            [sys.executable, *launcher, "-m", "ffn", "find_lr", empty, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            check=True,
            timeout=300,
        )
        found.append(json.loads((output / "find_lr/lr_range.json").read_text())["losses"])
    assert found[1] == pytest.approx(found[0], rel=1e-4)
