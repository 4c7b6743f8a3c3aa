"""Options of the train step in whole runs: accumulation, views, precision, clipping, norms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toys import STEPS, build, read_log, state_of, train

from ffn.engine import loop, train_step
from ffn.engine.loop import Run


def train_in_float64(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences between two orders of summation are then far below those of a wrong formula."""
    run.train_step.task.double()
    to_device = train_step.to_device

    def convert(batch: dict[str, Any], *more: Any) -> dict[str, Any]:
        batch = to_device(batch, *more)
        return {**batch, "clips": {t: clip.double() for t, clip in batch["clips"].items()}}

    with monkeypatch.context() as patch:
        patch.setattr(train_step, "to_device", convert)
        patch.setattr(loop, "validate", lambda *_: None)
        loop.train(run)


@pytest.mark.slow
@pytest.mark.parametrize("views", ["together", "sequential"])
def test_accumulated_micro_batches_equal_one_batch(
    videos: Path, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, views: str
) -> None:
    more = (start, f"train.views={views}", "train.freeze=[norms]", "model.dropout=0")

    entries, states = [], []
    for number in (1, 3):
        folder = tmp_path / str(number)
        run = build(videos, folder, *more, f"train.grad_accum_steps={number}")
        train_in_float64(run, monkeypatch)
        entries.append(read_log(folder))
        states.append(run.train_step.model.state_dict())

    for other, state in zip(entries[1:], states[1:], strict=True):
        for key in ("loss", "loss/ce_4", "loss/kl_2", "top1/2", "top1/4", "grad_norm"):
            found, expected = ([entry[key] for entry in run] for run in (other, entries[0]))
            assert found == pytest.approx(expected, rel=1e-6)
            assert max(expected) > 1e-2
        for key, value in state.items():
            torch.testing.assert_close(value, states[0][key], rtol=1e-6, atol=1e-6)


def test_sequential_views_train_as_together(videos: Path, finished: Path, tmp_path: Path) -> None:
    sequential = train(videos, tmp_path / "run", "train.views=sequential")  # dropout on

    losses = [[entry["loss"] for entry in read_log(folder)] for folder in (sequential, finished)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize(
    ("precision", "views"), [("bf16", "together"), ("fp16", "together"), ("fp16", "sequential")]
)
def test_every_precision_clips_in_units_of_the_loss(
    videos: Path, tmp_path: Path, precision: str, views: str
) -> None:
    limit = 0.05
    more = (f"train.precision={precision}", f"train.views={views}", f"train.clip_grad_norm={limit}")
    run = build(videos, tmp_path / "run", *more, "train.epochs=1")
    stepped: list[float] = []
    step = run.train_step.scaler.step

    def watch(optimizer: torch.optim.Optimizer) -> Any:
        gradients = [p.grad.double().norm() for g in optimizer.param_groups for p in g["params"]]
        stepped.append(float(torch.stack(gradients).norm()))
        return step(optimizer)

    run.train_step.scaler.step = watch
    before = state_of(run.train_step.model)
    loop.train(run)

    assert run.train_step.scaler.is_enabled() == (precision == "fp16")
    assert len(stepped) == STEPS
    assert max(stepped) == pytest.approx(limit, rel=1e-3)
    norms = [entry["grad_norm"] for entry in read_log(tmp_path / "run")]
    assert all(limit < norm < 50 for norm in norms)  # before clipping, and without loss scale
    assert all(entry["loss"] < 5 for entry in read_log(tmp_path / "run"))
    after = run.train_step.model.state_dict()
    assert all(torch.isfinite(value).all() for value in after.values())
    assert not torch.equal(after["net.fc.weight"], before["net.fc.weight"])


def test_mixed_videos_are_drawn_again_in_every_step(videos: Path, tmp_path: Path) -> None:
    run = build(videos, tmp_path / "run", "train.mixup=1", "train.grad_accum_steps=2")
    keys = []
    mix = run.train_step.batch_mix

    def watch(batch: dict[str, Any], **key: int) -> dict[str, Any]:
        keys.append((key["step"], key["micro"], key["rank"]))
        return mix(batch, **key)

    run.train_step.batch_mix = watch
    loop.train(run)

    assert keys == [(step, micro, 0) for step in range(2 * STEPS) for micro in range(2)]
