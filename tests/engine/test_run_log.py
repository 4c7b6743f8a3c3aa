"""The log of a run: the same numbers in ``log.jsonl``, TensorBoard and wandb, once each."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toys import CPU, log_lines

from ffn.engine.distributed import World
from ffn.engine.meter import Meter, memory_mib, top1
from ffn.engine.run_log import RunLog
from ffn.engine.train_step import StepResult


def run_log(folder: Path, step: int = 0, lines: int = 0, world: World = CPU, **more: Any) -> RunLog:
    folder.mkdir(exist_ok=True)
    settings = {"wandb": "disabled", "project": "test", "config": {"lr": 0.1}, **more}
    return RunLog(folder, world, first_step=step, lines=lines, total_steps=8, **settings)


def record(log: RunLog, steps: range) -> None:
    """A line per step, and two at the end of an epoch of 4 steps, as the loop records them."""
    for step in steps:
        log.record("train", step, {"loss": 1 / step, "top1/8": 10.0 * step})
        if step % 4 == 0:
            log.record("train", step, {"skipped": step // 4})
            log.record("val", step, {"top1/8": 5.0 * step, "mean": math.nan})


def numbers(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in entry.items() if k != "time"} for entry in log_lines(folder)]


def test_lines_are_strict_json_and_a_resumed_run_repeats_its_own(tmp_path: Path) -> None:
    with run_log(tmp_path / "whole") as log:
        record(log, range(1, 9))
        assert log.lines == 12
    whole = numbers(tmp_path / "whole")
    assert whole[3:5] == [
        {"step": 4, "train/loss": 0.25, "train/top1/8": 40.0},
        {"step": 4, "train/skipped": 1},
    ]
    assert whole[5]["val/mean"] is None  # strict JSON has no NaN
    with run_log(tmp_path / "run") as log:
        record(log, range(1, 7))
    with (tmp_path / "run/log.jsonl").open("a") as file:
        file.write('{"step": ')  # killed while it wrote
    assert numbers(tmp_path / "run")[:5] == whole[:5]
    with run_log(tmp_path / "run", 4, lines=6) as log:
        record(log, range(5, 9))
    assert numbers(tmp_path / "run") == whole


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    with run_log(tmp_path, world=World(1, 2, torch.device("cpu")), tensorboard=True) as log:
        record(log, range(1, 5))
    assert not list(tmp_path.iterdir())


def test_tensorboard_holds_the_curves_of_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for step, lines, steps in ((0, 0, range(1, 7)), (4, 6, range(5, 9))):
        with run_log(tmp_path, step, lines, tensorboard=True) as log:
            record(log, steps)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert found == [(step, pytest.approx(1 / step)) for step in range(1, 9)]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"frame-flexible\[tensorboard\]"):
        run_log(tmp_path, tensorboard=True)


class FakeWandb:
    """As a run that wandb resumed online: it refuses rows before `starting_step`."""

    def __init__(self) -> None:
        self.starting_step, self.rows, self.options = 0, [], []

    def init(self, **options: Any) -> FakeWandb:
        self.options.append(options)
        return self

    def log(self, values: dict[str, float], step: int, commit: bool) -> None:
        assert step >= self.starting_step
        self.starting_step = step + 1
        self.rows.append(values)

    Settings = define_metric = finish = lambda *_, **__: None


def test_wandb_gets_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for step, lines, steps in ((0, 0, range(1, 7)), (4, 6, range(5, 9))):
        with run_log(tmp_path, step, lines, wandb="online") as log:
            record(log, steps)
    assert str(wandb.rows).replace("nan", "None") == str(numbers(tmp_path))
    one, other = wandb.options
    assert one["id"] == other["id"] == (tmp_path / "wandb_id").read_text()
    with run_log(tmp_path, wandb="online"):  # from the start: a new run
        assert wandb.options[-1]["id"] != one["id"]


def test_console(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Without a terminal, the progress is shown once a minute; each video is listed once."""
    reasons = [f"video_{number:02}.mp4: damaged" for number in range(12)]
    with run_log(tmp_path) as log:
        log.progress(1, "loss 1.2")
        log._shown -= 61
        log.progress(2, "loss 1.1")
        log.progress(3, "loss 1.0")
        log.unreadable("epoch 1: 12", reasons)
        log.unreadable("epoch 2: 12", reasons)
    shown = capsys.readouterr().out
    assert shown.split()[:4] == ["step", "2", "loss", "1.1"]
    assert [shown.count(f"video_{number:02}") for number in (0, 9, 10)] == [1, 1, 0]
    assert (tmp_path / "unreadable.txt").read_text().splitlines() == reasons


def result(
    *losses: float, bad: bool = False, updated: bool = True, skipped: tuple[str, ...] = ()
) -> StepResult:
    """A step with a micro-batch of four videos per loss; half of them are right."""
    logits = torch.eye(2).repeat(2, 1)  # predicts 0, 1, 0, 1
    label = torch.tensor([0, 1, 1, 0])
    outputs = [
        {"loss": torch.tensor(loss), "loss/ce_4": torch.tensor(loss / 2), "logits/4": logits}
        | {"label": label, "skipped": [*skipped]}
        for loss in losses
    ]
    return StepResult(outputs, torch.tensor(1.0), updated, "bad" if bad else None, False)


def test_means_are_over_micro_batches_of_good_steps() -> None:
    """Also after the state of the interval was saved and restored."""
    meter, other = Meter(CPU), Meter(CPU)
    meter.add(result(1.0, 2.0, skipped=("a.mp4",)))
    meter.add(result(99.0, 99.0, bad=True, updated=False, skipped=("b.mp4",)))
    meter.add(result(50.0, 50.0, updated=False))  # an overflow of fp16
    other.load_state_dict(meter.state_dict())
    for one in (meter, other):
        one.add(result(6.0, 3.0))
        assert one.means() == {"loss": 3.0, "loss/ce_4": 1.5, "top1/4": 50.0, "bad_steps": 1}
        assert one.take_skipped() == ["a.mp4", "b.mp4"]
        assert one.take_skipped() == []
        values = one.interval(lr=0.1, grad_norm=torch.tensor(2.5))
        assert (values["lr"], values["grad_norm"], values["loss"]) == (0.1, 2.5, 3.0)
        assert values["videos_per_s"] > 0
        assert 0 <= values["data_wait"] <= 1
    meter.restart()
    assert meter.means() == {"bad_steps": 0}


def test_top1_and_memory() -> None:
    """Of soft labels, the larger share counts."""
    logits = torch.tensor([[0.1, 0.9, 0.0], [2.0, 1.0, 3.0], [0.0, -1.0, -2.0], [1.0, 2.0, 3.0]])
    assert top1(logits, torch.tensor([1, 2, 1, 0])) == 0.5
    label = torch.tensor([[0.3, 0.7, 0.0], [0.6, 0.0, 0.4], [0.9, 0.05, 0.05], [0.0, 0.4, 0.6]])
    assert top1(logits, label) == 0.75
    assert 50 < memory_mib(torch.device("cpu")) < 100_000
