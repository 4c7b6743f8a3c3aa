"""The log of a run: the same numbers in ``log.jsonl``, TensorBoard and wandb, once each."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toys import CPU

from ffn.engine.distributed import World
from ffn.engine.logs import console
from ffn.engine.logs.meter import Meter, memory_mib, top1
from ffn.engine.logs.run_log import RunLog, read_log
from ffn.engine.train_step import StepResult


def run_log(folder: Path, first_step: int = 0, world: World = CPU, **more: Any) -> RunLog:
    folder.mkdir(exist_ok=True)
    settings = {"wandb_mode": "disabled", "project": "test", "config": {"lr": 0.1}, **more}
    return RunLog(folder, world, first_step=first_step, total_steps=8, **settings)


def record(log: RunLog, steps: range) -> None:
    """A line per step, and two at the end of an epoch of 4 steps, as the loop records them."""
    for step in steps:
        log.record("train", step, {"loss": 1 / step, "top1/8": 10.0 * step})
        if step % 4 == 0:
            log.record("train", step, {"skipped": step // 4})
            log.record("val", step, {"top1/8": 5.0 * step, "mean": 5.0 * step})


def numbers(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in entry.items() if k != "time"} for entry in read_log(folder)]


# --- log.jsonl ----------------------------------------------------------------------------------


def test_lines_are_strict_json_with_kind_and_key(tmp_path: Path) -> None:
    with run_log(tmp_path) as log:
        record(log, range(4, 5))
        log.record("train", 5, {"loss": math.nan})
    assert numbers(tmp_path)[:3] == [
        {"step": 4, "train/loss": 0.25, "train/top1/8": 40.0},
        {"step": 4, "train/skipped": 1},
        {"step": 4, "val/top1/8": 20.0, "val/mean": 20.0},
    ]
    assert math.isnan(read_log(tmp_path)[3]["train/loss"])
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[3])["train/loss"] is None


def test_cut_and_foreign_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "time": 1, "train/loss": 2.0}\n{"step": 2, "tra')
    assert [entry["train/loss"] for entry in read_log(tmp_path)] == [2.0]
    path.write_text('{"step": 1, "time": 1}\n[1]\n{"step": 2, "time": 1}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_log(tmp_path)
    with pytest.raises(FileNotFoundError, match="absent"):
        read_log(tmp_path / "absent")


def test_each_line_is_written_once(tmp_path: Path) -> None:
    """The checkpoint of step 4 precedes the end of the epoch, which a resumed run repeats."""
    with run_log(tmp_path / "whole") as log:
        record(log, range(1, 9))
    expected = numbers(tmp_path / "whole")
    for killed_after in (4, 5, 6, 8):  # lines
        folder = tmp_path / f"run{killed_after}"
        with run_log(folder) as log:
            record(log, range(1, 9))
        lines = (folder / "log.jsonl").read_text().splitlines(keepends=True)
        (folder / "log.jsonl").write_text("".join(lines[:killed_after]) + '{"step": ')
        with run_log(folder, 4) as log:
            log.record("train", 4, {"skipped": 1})
            log.record("val", 4, {"top1/8": 20.0, "mean": 20.0})
            record(log, range(5, 9))
        assert numbers(folder) == expected


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    with run_log(tmp_path, world=World(1, 2, torch.device("cpu")), tensorboard=True) as log:
        record(log, range(1, 5))
    assert not list(tmp_path.iterdir())


# --- TensorBoard and wandb ----------------------------------------------------------------------


def test_tensorboard_holds_the_curves_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that was resumed at step 4."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for first, steps in ((0, range(1, 7)), (4, range(5, 9))):
        with run_log(tmp_path, first, tensorboard=True) as log:
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

    def Settings(self, **options: Any) -> None:
        pass

    def define_metric(self, name: str, **options: Any) -> None:
        pass

    def log(self, values: dict[str, float], step: int, commit: bool) -> None:
        assert step >= self.starting_step
        self.starting_step = step + 1
        self.rows.append(values)

    def finish(self, exit_code: int) -> None:
        pass


def test_wandb_gets_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    with run_log(tmp_path) as log:  # disabled by default
        record(log, range(1, 7))
    assert wandb.options == []
    (tmp_path / "log.jsonl").unlink()
    for first, steps in ((0, range(1, 7)), (4, range(5, 9))):
        with run_log(tmp_path, first, wandb_mode="online") as log:
            record(log, steps)
    assert wandb.rows == numbers(tmp_path)
    one, other = wandb.options
    assert one["id"] == other["id"] == (tmp_path / "wandb_id").read_text()
    with run_log(tmp_path, 0, wandb_mode="online"):  # from the start: a new run
        assert wandb.options[-1]["id"] != one["id"]


# --- console ------------------------------------------------------------------------------------


def test_table_of_validations(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    values = {"loss": 1.25, "lr": 0.01, "measure": "top1"}
    with run_log(tmp_path) as log:
        for epoch, best in ((1, True), (2, False)):
            metrics = {t: {"top1": 10.0 * t} for t in (4, 8)}
            log.validation(console.validation_cells(epoch, metrics, 60, is_best=best, **values))
        log.progress(3, "loss 1.2")  # not yet a minute
    header, first, second = capsys.readouterr().out.splitlines()
    titles = ["epoch", "loss", "lr", "top-1", "%:", "4f", "8f", "mean", "time"]
    assert header.split() == titles
    assert first.split() == ["1", "1.250", "0.01", "40.0", "80.0", "60.0*", "0:00"]
    assert second.split() == ["2", "1.250", "0.01", "40.0", "80.0", "60.0", "0:00"]
    assert len({len(line) for line in (header, first, second)}) == 1


def test_without_a_terminal_the_progress_is_shown_once_a_minute(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with run_log(tmp_path) as log:
        log.progress(1, "loss 1.2")
        log._shown -= 61
        log.progress(2, "loss 1.1")
        log.progress(3, "loss 1.0")
    assert capsys.readouterr().out.split() == ["step", "2", "loss", "1.1"]


def test_unreadable_videos_are_listed_once(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    reasons = [f"video_{number:02}.mp4: damaged" for number in range(12)]
    with run_log(tmp_path) as log:
        log.unreadable("epoch 1: 12", reasons)
        log.unreadable("epoch 2: 12", reasons)
    shown = capsys.readouterr().out
    assert [shown.count(f"video_{number:02}") for number in (0, 9, 10)] == [1, 1, 0]
    assert (tmp_path / "unreadable.txt").read_text().splitlines() == reasons


# --- metrics of an interval -----------------------------------------------------------------------


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
    meter = Meter(CPU)
    meter.add(result(1.0, 2.0))
    meter.add(result(6.0, 3.0))
    meter.add(result(99.0, 99.0, bad=True, updated=False))
    meter.add(result(50.0, 50.0, updated=False))  # an overflow of fp16
    assert meter.means() == {"loss": 3.0, "loss/ce_4": 1.5, "top1/4": 50.0, "bad_steps": 1}
    values = meter.interval(lr=0.1, grad_norm=torch.tensor(2.5))
    assert (values["lr"], values["grad_norm"], values["loss"]) == (0.1, 2.5, 3.0)
    assert values["videos_per_s"] > 0
    assert 0 <= values["data_wait"] <= 1
    meter.restart()
    assert meter.means() == {"bad_steps": 0}


def test_state_restores_the_interval() -> None:
    meter, other = Meter(CPU), Meter(CPU)
    meter.add(result(1.0, 4.0, skipped=("a.mp4",)))
    meter.add(result(9.0, bad=True, updated=False, skipped=("b.mp4",)))
    other.load_state_dict(meter.state_dict())
    for one in (meter, other):
        one.add(result(7.0))
    assert other.means() == meter.means()
    assert other.means()["loss"] == 4.0
    assert other.take_skipped() == ["a.mp4", "b.mp4"]
    assert other.take_skipped() == []


def test_top1_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.tensor([[0.1, 0.9, 0.0], [2.0, 1.0, 3.0], [0.0, -1.0, -2.0], [1.0, 2.0, 3.0]])
    assert top1(logits, torch.tensor([1, 2, 1, 0])) == 0.5
    assert 50 < memory_mib(torch.device("cpu")) < 100_000
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**20)
    assert memory_mib(torch.device("cuda")) == 3
