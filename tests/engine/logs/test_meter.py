"""Metrics of an interval: means, accuracy, speed, skipped videos, memory."""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toys import CPU

from ffn.engine.distributed import World
from ffn.engine.logs import meter as module
from ffn.engine.logs.meter import Meter, memory_mib, top1
from ffn.engine.train_step import StepResult


def result(
    *losses: float, bad: bool = False, updated: bool = True, skipped: tuple[str, ...] = ()
) -> StepResult:
    """A step with a micro-batch of four videos per loss; half of them are right."""
    logits = torch.eye(2).repeat(2, 1)  # predicts 0, 1, 0, 1
    label = torch.tensor([0, 1, 1, 0])
    outputs = [
        {"loss": torch.tensor(loss), "loss/ce_4": torch.tensor(loss / 2), "logits/4": logits}
        | {"label": label, "index": torch.arange(4), "skipped": [*skipped]}
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

    meter.restart()
    assert meter.means() == {"bad_steps": 0}


def test_speed_counts_the_videos_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 videos in 10 s on each of two processes; 4 of the 10 s are spent waiting."""
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    meter = Meter(World(0, 2, torch.device("cpu")))

    def slow() -> Iterator[dict[str, Any]]:
        for _ in range(2):
            now[0] += 2
            yield {}

    assert len(list(meter.timed(slow()))) == 2
    now[0] += 6
    meter.add(result(1.0, 1.0))
    meter.add(result(1.0, 1.0, 1.0, bad=True, updated=False))

    assert meter.speed() == (4.0, 0.4)
    meter.restart_clock()
    now[0] += 1
    assert meter.speed() == (0, 0)


def test_interval_has_the_keys_of_the_log() -> None:
    meter = Meter(CPU)
    meter.add(result(1.0))

    values = meter.interval(lr=0.1, grad_norm=torch.tensor(2.5))

    assert (values["lr"], values["grad_norm"], values["loss"]) == (0.1, 2.5, 1.0)
    assert {"videos_per_s", "data_wait", "memory_mib", "bad_steps", "top1/4"} < set(values)


def test_skipped_videos_are_taken_once() -> None:
    meter = Meter(CPU)
    meter.add(result(1.0, skipped=("a.mp4",)))
    meter.add(result(1.0, bad=True, updated=False, skipped=("b.mp4",)))
    meter.restart()  # an interval may end within an epoch

    assert meter.take_skipped() == ["a.mp4", "b.mp4"]
    assert meter.take_skipped() == []


def test_state_restores_the_interval() -> None:
    meter, other = Meter(CPU), Meter(CPU)
    meter.add(result(1.0, 4.0, skipped=("a.mp4",)))
    meter.add(result(9.0, bad=True, updated=False))

    other.load_state_dict(meter.state_dict())

    for one in (meter, other):
        one.add(result(7.0))
    assert other.means() == meter.means()
    assert other.means()["loss"] == 4.0
    assert other.take_skipped() == ["a.mp4"]  # of several samples


def test_top1() -> None:
    logits = torch.tensor([[0.1, 0.9, 0.0], [2.0, 1.0, 3.0], [0.0, -1.0, -2.0], [1.0, 2.0, 3.0]])

    assert top1(logits, torch.tensor([1, 2, 1, 0])) == 0.5


def test_memory_on_a_cpu_is_the_peak_of_the_process() -> None:
    pytest.importorskip("resource")
    statm = Path("/proc/self/statm")
    if not statm.is_file():
        pytest.skip("no /proc to compare with")

    def resident() -> float:
        return int(statm.read_text().split()[1]) * 4096 / 2**20

    before = memory_mib(torch.device("cpu"))
    assert before > resident() - 8
    # Not a tensor: its memory may be what the process has kept of an earlier one.
    block = mmap.mmap(-1, int((before - resident() + 64) * 2**20), mmap.MAP_PRIVATE)
    for page in range(0, len(block), mmap.PAGESIZE):
        block[page] = 1
    highest = resident()
    assert highest > before + 32
    assert memory_mib(torch.device("cpu")) == pytest.approx(highest, abs=8)
    block.close()
    assert memory_mib(torch.device("cpu")) == pytest.approx(highest, abs=8)


def test_memory_on_cuda_is_what_tensors_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**20)
    assert memory_mib(torch.device("cuda")) == 3


@pytest.mark.slow
def test_the_memory_of_the_parent_does_not_count() -> None:
    held = bytearray(b"x" * 2**30)  # written, so resident
    code = "import torch; from ffn.engine.logs.meter import memory_mib as peak; "
    code += "print(peak(torch.device('cpu')))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(held) == 2**30
    assert float(found.stdout) < 900
