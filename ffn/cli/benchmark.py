"""Compare throughput and peak memory of variants.

The variants alternate, A B C A B C, so that other load on the machine affects all of them equally.
OMP_NUM_THREADS sets the number of CPU threads.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts import Parameter
from cyclopts.types import ExistingDirectory, ExistingPath, PositiveInt

from ffn.cli.arguments import Device, FrameCounts, Imports, Overwrite, find_device
from ffn.files import make_writable, refuse_existing, write_text
from ffn.registry import import_extensions

if TYPE_CHECKING:
    import torch

    from ffn.benchmarks.timing import Comparison
    from ffn.engine.train_step import TrainStep


@Parameter(name="*")
@dataclass(frozen=True)
class Settings:
    """Options of all benchmarks.

    Attributes:
        size: Height and width of a clip.
        rounds: Timed runs.
        output: A .json file of the results.
        overwrite: Replace the file.
        imports: Your own packages that register models.
        device: cpu, cuda, cuda:1, …; default: cuda if there is one.
    """

    size: PositiveInt = 224
    rounds: PositiveInt = 10
    output: Path | None = None
    overwrite: Overwrite = False
    imports: Imports = None
    device: Device = None


DEFAULTS = Settings()


def train(
    *,
    model: str = "tsm_r50",
    frames: FrameCounts = (4, 8, 16),
    batch_size: PositiveInt | None = None,
    num_classes: PositiveInt = 174,
    precision: Literal["fp32", "bf16", "fp16"] = "fp32",
    compile: bool = False,
    settings: Settings = DEFAULTS,
) -> None:
    """Measure training steps: views together and in sequence, with and without checkpointing.

    Args:
        model: Name of a model.
        frames: Trained frame counts.
        batch_size: Videos; default: 8 on CUDA, else 2.
        num_classes: Classes of the model.
        precision: Of the forward pass.
        compile: Also measure torch.compile.
    """
    device, report = _prepare(settings, "videos")
    from ffn.benchmarks.training import compare_training

    compared = compare_training(
        model,
        list(frames),
        partial(build_step, model, num_classes, device),
        batch_size=batch_size or (8 if device.type == "cuda" else 2),
        size=settings.size,
        num_classes=num_classes,
        precision=precision,
        compiled=compile,
        rounds=settings.rounds,
        device=device,
    )
    report(compared)


def build_step(
    model: str,
    num_classes: int,
    device: torch.device,
    task: str,
    frames: Sequence[int],
    options: Sequence[str] = (),
) -> TrainStep:
    """The train step of a run with a task, its frame counts, and further options of a config."""
    from ffn.engine import build, build_network
    from ffn.engine.config import load_config
    from ffn.engine.distributed import World

    network = [f"model.name={model}", f"task.name={task}", f"task.frames={list(frames)}"]
    config = load_config(None, [*network, *options])
    built = build_network.build_model(config, num_classes).to(device)
    return build.build_train_step(config, built, World(0, 1, device), num_classes=num_classes)


def infer(
    *,
    model: Sequence[str] = ("tsm_r50",),
    trained_frames: FrameCounts = (4, 8, 16),
    frames: FrameCounts | None = None,
    batch_size: PositiveInt = 1,
    num_classes: PositiveInt = 174,
    compile: bool = False,
    settings: Settings = DEFAULTS,
) -> None:
    """Measure forward passes: the network as trained, and each installed runtime.

    Args:
        model: Names of models.
        trained_frames: Trained frame counts.
        frames: Frames of a clip; default: the trained counts.
        batch_size: Clips.
        num_classes: Classes of the models.
        compile: Also measure torch.compile.
    """
    device, report = _prepare(settings, "clips")
    from ffn.benchmarks.inference import compare_inference
    from ffn.core import convert
    from ffn.zoo import create_model

    for name in model:
        network = create_model(name, num_classes=num_classes).to(device).eval()
        for compared in compare_inference(
            name,
            convert(network, tuple(trained_frames)),
            frames=list(frames or trained_frames),
            batch_size=batch_size,
            size=settings.size,
            compiled=compile,
            rounds=settings.rounds,
        ):
            report(compared)


def data(
    *,
    annotations: ExistingPath,
    root: ExistingDirectory | None = None,
    videos: PositiveInt = 14,
    frames: FrameCounts = (4, 8, 16),
    settings: Settings = DEFAULTS,
) -> None:
    """Measure training samples: one decode for all views, or one per view.

    Args:
        annotations: List of videos.
        root: Folder of the paths in the list.
        videos: The first videos are read.
        frames: Views of a sample.
    """
    _, report = _prepare(settings, "samples")
    from ffn.benchmarks.reading import compare_reading
    from ffn.data import read_annotations

    records = read_annotations(annotations, root=root)[0][:videos]
    report(compare_reading(records, list(frames), size=settings.size, rounds=settings.rounds))


benchmark = {"train": train, "infer": infer, "data": data}


def _prepare(settings: Settings, items: str) -> tuple[torch.device, Callable[[Comparison], None]]:
    """The device, and a function that prints a comparison and adds it to the file."""
    # The profiler measures CPU memory; without this it logs that there is no GPU.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    import torch

    from ffn.benchmarks.report import MEMORY, describe_run, print_comparison

    if settings.output:
        refuse_existing([settings.output], settings.overwrite)
        make_writable(settings.output.parent)
    import_extensions(settings.imports or [])
    torch.manual_seed(0)
    device = find_device("cpu" if items == "samples" else settings.device, MEMORY)
    measured = describe_run(device)
    print(*(f"{key}: {value}" for key, value in measured.items()), sep="\n")
    content = {"command": shlex.join(["ffn", *sys.argv[1:]]), "measured": measured}
    content["comparisons"] = []

    def report(comparison: Comparison) -> None:
        content["comparisons"].append(asdict(comparison))
        print_comparison(comparison, items)
        if settings.output:
            write_text(settings.output, json.dumps(content, indent=2) + "\n")

    return device, report
