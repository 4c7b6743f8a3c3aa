"""``ffn benchmark``: throughput and memory as ratios from one run."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ffn.cli.arguments import (
    add_device_argument,
    add_imports_argument,
    find_device,
    load_imports,
    positive_int,
    refuse_existing,
)
from ffn.cli.program import Parser, called_as, fail, program

if TYPE_CHECKING:
    import torch

    from ffn.benchmarks.timing import Comparison


@program("benchmark", "the same command starts again")
def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure, print and write; returns 2 on an error."""
    given = _parser().parse_args(arguments)
    # The profiler measures CPU memory; without this it logs that there is no GPU.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    import torch

    from ffn.benchmarks import report
    from ffn.data import VideoError
    from ffn.files import make_writable

    command = shlex.join(["ffn", "benchmark", *(sys.argv[1:] if arguments is None else arguments)])
    try:
        if given.output:
            refuse_existing(given.output, given.overwrite)
            make_writable(given.output.parent)
        load_imports(given)
        torch.manual_seed(0)
        device = find_device(given.device, report.MEMORY)
        measured = report.describe_run(device)
        comparisons = []
        for comparison in given.measure(given, device):
            comparisons.append(comparison)
            report.print_comparison(comparison, items=given.items)
            if given.output:  # after each: an interrupted run keeps what it has measured
                report.save_comparisons(
                    comparisons, given.output, measured=measured, command=command
                )
        print(*(f"{key}: {value}" for key, value in measured.items()), sep="\n")
    except (ValueError, RuntimeError, OSError, ImportError, VideoError) as error:
        return fail("benchmark", error)
    return 0


def _train(given: argparse.Namespace, device: torch.device) -> Iterator[Comparison]:
    from ffn.benchmarks.training import compare_training
    from ffn.engine import build, build_network
    from ffn.engine.config import load_config
    from ffn.engine.distributed import World
    from ffn.engine.train_step import TrainStep

    def build_step(task: str, frames: Sequence[int], options: Sequence[str]) -> TrainStep:
        network = [f"model.name={given.model}", f"task.name={task}", f"task.frames={list(frames)}"]
        config = load_config(None, [*network, *options])
        model = build_network.build_model(config, given.num_classes).to(device)
        world = World(0, 1, device)
        return build.build_train_step(config, model, world, num_classes=given.num_classes)

    yield compare_training(
        given.model,
        given.frames,
        build_step,
        batch_size=given.batch_size or (8 if device.type == "cuda" else 2),
        size=given.size,
        num_classes=given.num_classes,
        precision=given.precision,
        compiled=given.compile,
        rounds=given.rounds,
        device=device,
    )


def _infer(given: argparse.Namespace, device: torch.device) -> Iterator[Comparison]:
    from ffn.benchmarks.inference import compare_inference
    from ffn.core import convert
    from ffn.zoo import create_model

    for name in given.model:
        model = create_model(name, num_classes=given.num_classes).to(device).eval()
        yield from compare_inference(
            name,
            convert(model, given.trained_frames),
            frames=given.frames or given.trained_frames,
            batch_size=given.batch_size,
            size=given.size,
            compiled=given.compile,
            rounds=given.rounds,
        )


def _data(given: argparse.Namespace, _: torch.device) -> Iterator[Comparison]:
    from ffn.benchmarks.reading import compare_reading
    from ffn.data import read_annotations

    records = read_annotations(given.annotations, root=given.root)[0]
    yield from compare_reading(
        records[: given.videos],
        given.frames,
        size=given.size,
        workers=given.workers,
        rounds=given.rounds,
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("benchmark"),
        description="Compare throughput and peak memory of variants. The variants alternate, "
        "A B C A B C, so that other load on the machine affects all of them equally. "
        "OMP_NUM_THREADS sets the number of CPU threads.",
    )
    commands = parser.add_subparsers(required=True, metavar="train|infer|data")
    train = commands.add_parser("train", help="training steps: views together and in sequence")
    train.set_defaults(measure=_train, items="videos")
    train.add_argument("--model", default="tsm_r50", help="name of a model; default: tsm_r50")
    train.add_argument("--frames", type=positive_int, nargs="+", default=[4, 8, 16], metavar="T")
    train.add_argument("--batch-size", type=positive_int, metavar="B")
    train.add_argument("--precision", default="fp32", choices=["fp32", "bf16", "fp16"])

    infer = commands.add_parser("infer", help="forward passes: as trained, fused, bf16, compiled")
    infer.set_defaults(measure=_infer, items="clips")
    infer.add_argument("--model", nargs="+", default=["tsm_r50"], help="names of models")
    infer.add_argument("--trained-frames", type=positive_int, nargs="+", default=[4, 8, 16])
    infer.add_argument("--frames", type=positive_int, nargs="+", metavar="T")
    infer.add_argument("--batch-size", type=positive_int, default=1, metavar="B")

    data = commands.add_parser("data", help="training samples: one decode or several, workers")
    data.set_defaults(measure=_data, items="samples", device="cpu")
    data.add_argument("--annotations", type=Path, required=True, help="list of videos")
    data.add_argument("--root", type=Path, help="folder of the paths in the list")
    data.add_argument("--videos", type=positive_int, default=14, help="the first videos")
    data.add_argument("--frames", type=positive_int, nargs="+", default=[4, 8, 16], metavar="T")
    data.add_argument("--workers", type=positive_int, nargs="*", default=[1, 2])

    for command in (train, infer):
        command.add_argument("--num-classes", type=positive_int, default=174, metavar="K")
        command.add_argument("--compile", action="store_true", help="also measure torch.compile")
        add_device_argument(command)
    for command in (train, infer, data):
        command.add_argument("--size", type=positive_int, default=224, metavar="PX")
        command.add_argument("--rounds", type=positive_int, default=10, help="timed runs")
        command.add_argument("--output", type=Path, metavar="FILE.json")
        command.add_argument("--overwrite", action="store_true")
        add_imports_argument(command)
    return parser
