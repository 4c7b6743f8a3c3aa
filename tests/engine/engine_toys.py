"""A small data set of mp4 files, runs on it, and small tasks without files."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ffn import backbones
from ffn.core import convert
from ffn.engine import loop
from ffn.engine.build import build_run
from ffn.engine.config import load_config
from ffn.engine.distributed import World
from ffn.engine.loop import Run
from ffn.engine.options import Config
from ffn.engine.tasks import FlexibleTask, Task
from ffn.engine.train_step import StepResult, TrainStep

ROOT = Path(__file__).parents[2]
CLASSES = ("left", "right", "still")
CPU = World(0, 1, torch.device("cpu"))
TWO_PROCESSES = ("--standalone", "--nproc-per-node", "2")  # of torchrun
STEPS = 4  # per epoch of a small run: 24 videos in batches of 6

# Counts of runs. Draws: three sub-networks, two views; a step runs two or three of them.
RANGES = ("task.frames=[2,8]", "task.ranges=[[1,4],[5,12]]", "data.test_frames=[1,3,6,16]")
DRAWS = (
    "task.frames=[1,3,8]",
    "task.ranges=[[1,2],[3,5],[6,12]]",
    "task.draws=[[1,4],[5,12]]",
    "data.test_frames=[1,3,6,16]",
)
MIXED = ("task.name=mixed_sampling", "task.frames=[2,4]", "task.mix_probability=0.6")
PROPORTIONAL = ("task.name=proportional_sampling", "task.frames=[2,4]")


def write_videos(folder: Path, *, train: int = 24, val: int = 9) -> Path:
    """Gratings that move left, move right, or do not move: 12 frames of 32 x 32."""
    from serve_files import write_video

    rng = np.random.default_rng(0)
    y, x = np.mgrid[:32, :32]
    for name, number in (("train", train), ("val", val)):
        rows = []
        for i in range(number):
            speed, phase = (-1, 1, 0)[i % 3], rng.uniform(0, 6)
            t = np.arange(12)[:, None, None]
            wave = np.sin(0.6 * x + 0.2 * (i % 5) * y + phase - 0.8 * speed * t)
            pixels = np.repeat((127 + 100 * wave)[..., None], 3, 3).astype(np.uint8)
            write_video(folder / f"{name}_{i}.mp4", pixels, rate=12, codec="libx264")
            rows.append((f"{name}_{i}.mp4", CLASSES[i % 3]))
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("path", "label"), *rows])
    return folder


def options(root: Path, output: Path, *more: str) -> list[str]:
    """Overrides for a small run; later ones win."""
    return [
        "model.name=tsm_tiny",
        "model.dropout=0.3",
        "task.frames=[2,4]",
        f"data.root={root}",
        "data.test_frames=[2,3,4]",
        "data.crop=16",
        "data.resize=20",
        "data.workers=0",
        "train.epochs=2",
        "train.batch_size=6",
        "optim.milestones=[1]",
        f"log.output={output}",
        "log.interval=1",
        "log.wandb=disabled",
        *more,
    ]


def config(root: Path, output: Path, *more: str) -> Config:
    return load_config(None, options(root, output, *more))


def build(root: Path, output: Path, *more: str) -> Run:
    """The parts of a small run in this process."""
    return build_run(config(root, output, *more), CPU)


def train(root: Path, output: Path, *more: str) -> Path:
    """Run to the end in this process; returns the run's folder."""
    loop.train(build(root, output, *more))
    return output


class Killed(BaseException):
    """Ends a run as a kill does: no error handler of the loop catches it."""


def train_until(last: int | str, root: Path, output: Path, *more: str) -> None:
    """Run, and raise `Killed` in place of a step, or of the first "validation"."""
    run = build(root, output, *more)
    step = run.train_step.step

    def kill(*_: Any) -> None:
        raise Killed

    def killed(batches: Any, *, number: int, **given: Any) -> StepResult:
        return kill() if number == last else step(batches, number=number, **given)

    run.train_step.step = killed
    with pytest.MonkeyPatch.context() as patch:
        if last == "validation":
            patch.setattr(loop, "evaluate", kill)
        with pytest.raises(Killed):
            loop.train(run)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of a model's parameters and buffers."""
    return {key: value.clone() for key, value in model.state_dict().items()}


def launch(
    root: Path, output: Path, *more: str, torchrun: tuple[str, ...] = ()
) -> subprocess.Popen:
    """Start the command as a user does, with arguments of torchrun if there are any."""
    launcher = ["-m", "torch.distributed.run", *torchrun] if torchrun else []
    command = [str(ROOT / "tools/train.py"), str(Path(__file__).with_name("empty.yaml"))]
    return subprocess.Popen(
        [sys.executable, *launcher, *command, *options(root, output, *more)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_step(folder: Path, step: int, process: subprocess.Popen) -> None:
    """Wait until the log of a run holds a step."""
    log, deadline = folder / "log.jsonl", time.monotonic() + 120
    while time.monotonic() < deadline:
        if log.is_file() and f'"step": {step},' in log.read_text():
            return
        if process.poll() is not None:
            raise AssertionError(process.communicate()[1])
        time.sleep(0.005)
    raise TimeoutError(f"no step {step} after 120 s")


def finish(process: subprocess.Popen) -> tuple[str, str]:
    """Wait for a process that must succeed; returns its stdout and stderr."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out, err


def log_lines(folder: Path) -> list[dict[str, Any]]:
    """The complete lines of the log of a run."""
    *lines, _ = (folder / "log.jsonl").read_text().split("\n")
    return [json.loads(line) for line in lines]


def read_log(folder: Path, kind: str = "train") -> list[dict[str, Any]]:
    """The lines of a kind, with short keys: "loss" for "train/loss"."""
    main = {"train": "train/lr", "skipped": "train/skipped", "val": "val/mean"}[kind]
    entries = [entry for entry in log_lines(folder) if main in entry]
    return [{key.partition("/")[2] or key: v for key, v in entry.items()} for entry in entries]


def weights(folder: Path, name: str = "last.pt") -> dict[str, Tensor]:
    return torch.load(folder / name, weights_only=True)["model"]


def same_weights(one: Path, other: Path) -> bool:
    states = weights(one), weights(other)
    assert list(states[0]) == list(states[1])
    return all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def tiny(dropout: float = 0.0, **kwargs: Any) -> nn.Module:
    return backbones.build("tsm_tiny", num_classes=3, width=8, dropout=dropout, **kwargs)


def flexible_task(
    counts: tuple[int, ...] = (2, 4, 8), dropout: float = 0.0, **kw: Any
) -> FlexibleTask:
    """A task whose sub-networks differ and whose logits are not near zero."""
    torch.manual_seed(0)
    model = convert(tiny(dropout), counts)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, *((-0.2, 0.2) if ".site." in name else (0.5, 1.5)))
        elif "fc" in name:
            nn.init.normal_(parameter, std=0.3)
    return FlexibleTask(model, counts, **kw)


def batch(
    counts: tuple[int, ...] = (2, 4, 8), size: int = 4, seed: int = 1, side: int = 16
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "clips": {t: torch.randn(size, 3, t, side, side, generator=generator) for t in counts},
        "label": torch.arange(size) % 3,
    }


def in_float64(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "clips": {t: clip.double() for t, clip in batch["clips"].items()}}


def assert_same_gradients(one: nn.Module, other: nn.Module) -> None:
    """To 1e-10 of the largest one; parameters without a gradient are the same."""
    expected = {name: p.grad for name, p in one.named_parameters()}
    largest = max(float(grad.abs().max()) for grad in expected.values() if grad is not None)
    assert largest > 0
    for name, parameter in other.named_parameters():
        assert (expected[name] is None) == (parameter.grad is None), name
        if parameter.grad is not None:
            assert (expected[name] - parameter.grad).abs().max() <= 1e-10 * largest, name


def backward(task: nn.Module, batch: dict[str, Any], views: str = "together") -> dict[str, Tensor]:
    """Forward and backward of a batch, all views together or one after another; the outputs."""
    if views == "sequential":
        return task(batch, Tensor.backward)
    outputs = task(batch)
    outputs["loss"].backward()
    return {key: value.detach() for key, value in outputs.items()}


def toy_step(world: World, task: Task, views: str = "together", **more: Any) -> TrainStep:
    """A train step with SGD that takes batches as they are."""
    sgd = {"lr": 0.01, **{k: more.pop(k) for k in ("momentum", "weight_decay") if k in more}}
    return TrainStep(
        task.train(),
        torch.optim.SGD([{"params": list(task.parameters()), "lr_scale": 1.0}], **sgd),
        world,
        normalize=nn.Identity(),
        batch_mix=lambda batch, **_: batch,
        sequential=views == "sequential",
        **more,
    )
