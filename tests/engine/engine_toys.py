"""A small data set of real mp4 files, configs for it, and small tasks without any file."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ffn import backbones
from ffn.core import convert
from ffn.engine import log, loop
from ffn.engine.build import build_run
from ffn.engine.config import load_config
from ffn.engine.distributed import World
from ffn.engine.options import Config
from ffn.engine.run import Run
from ffn.engine.tasks import FlexibleTask

ROOT = Path(__file__).parents[2]
CLASSES = ("left", "right", "still")
CPU = World(0, 1, torch.device("cpu"))


def write_videos(folder: Path, *, train: int = 24, val: int = 9) -> Path:
    """Gratings that move left, move right, or stand: 12 frames of 32 x 32."""
    import av

    rng = np.random.default_rng(0)
    y, x = np.mgrid[:32, :32]
    for name, number in (("train", train), ("val", val)):
        rows = []
        for i in range(number):
            speed, phase = (-1, 1, 0)[i % 3], rng.uniform(0, 6)
            with av.open(str(folder / f"{name}_{i}.mp4"), "w") as output:
                video = output.add_stream("libx264", rate=12)
                video.width, video.height, video.pix_fmt = 32, 32, "yuv420p"
                for t in range(12):
                    wave = np.sin(0.6 * x + 0.2 * (i % 5) * y + phase - 0.8 * speed * t)
                    pixels = np.repeat((127 + 100 * wave)[..., None], 3, 2).astype(np.uint8)
                    output.mux(video.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
                output.mux(video.encode())
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


def launch(
    root: Path,
    output: Path,
    *more: str,
    processes: int = 1,
    launcher: tuple[str, ...] = (),
    own_group: bool = False,
) -> subprocess.Popen:
    """Start the command in processes of its own, as a user would.

    Args:
        root: the videos.
        output: the run's folder.
        more: options.
        processes: through torchrun if more than one.
        launcher: more arguments of torchrun.
        own_group: in a process group of its own, as a job of a terminal.
    """
    empty = output.parent / "empty.yaml"
    empty.write_text("{}\n")
    alone = [] if "--nnodes" in launcher else ["--standalone"]
    torchrun = ["-m", "torch.distributed.run", *alone, *launcher, "--nproc-per-node"]
    return subprocess.Popen(
        [
            sys.executable,
            *([*torchrun, str(processes)] if processes > 1 or launcher else []),
            str(ROOT / "tools/train.py"),
            str(empty),
            *options(root, output, *more),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=own_group,
    )


def wait_for_step(folder: Path, step: int, process: subprocess.Popen) -> None:
    """Until the log of a run holds a step."""
    log, deadline = folder / "log.jsonl", time.monotonic() + 120
    while time.monotonic() < deadline:
        if log.is_file() and f'"step": {step},' in log.read_text():
            return
        if process.poll() is not None:
            raise AssertionError(process.communicate()[1])
        time.sleep(0.005)
    raise TimeoutError(f"step {step} never came")


def finish(process: subprocess.Popen) -> tuple[str, str]:
    """Wait; returns stdout and stderr of a process that must succeed."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out, err


def read_log(folder: Path, kind: str = "train") -> list[dict[str, Any]]:
    """The lines that have a kind's main key, with keys short: "loss" for "train/loss"."""
    main = {"train": "train/lr", "skipped": "train/skipped", "val": "val/mean"}[kind]
    entries = [entry for entry in log.read_log(folder) if main in entry]
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
    """A task whose sub-networks all differ and whose logits are not near zero."""
    torch.manual_seed(0)
    model = convert(tiny(dropout), counts)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, *((-0.2, 0.2) if ".site." in name else (0.5, 1.5)))
        elif "fc" in name:
            nn.init.normal_(parameter, std=0.3)
    return FlexibleTask(model, counts, **kw)


def batch(counts: tuple[int, ...] = (2, 4, 8), size: int = 4, seed: int = 1) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "clips": {t: torch.randn(size, 3, t, 16, 16, generator=generator) for t in counts},
        "label": torch.arange(size) % 3,
    }
