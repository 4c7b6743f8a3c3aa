"""``tools/benchmark.py train|infer|data``: throughput and memory as ratios from one run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ffn.benchmarks.comparisons import compare_inference, compare_training
from ffn.benchmarks.reading import compare_reading


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure, show and write; returns 2 on what cannot be done."""
    given = _parser().parse_args(arguments)
    # The profiler, asked for memory below, would report that a CPU-only machine has no GPU.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")

    from ffn.benchmarks.timing import (
        MEMORY,
        describe_run,
        print_comparisons,
        save_comparisons,
    )
    from ffn.data import VideoError

    try:
        if given.output and given.output.exists() and not given.overwrite:
            raise FileExistsError(f"{given.output} exists; name another file or add --overwrite")
        torch.manual_seed(0)
        if given.benchmark == "data":
            device = torch.device("cpu")
            measured = describe_run(device)
        else:
            device = _device(given.device)
            given.batch_size = given.batch_size or (8 if device.type == "cuda" else 2)
            measured = describe_run(device)
            measured |= {"precision": given.precision, "memory": MEMORY[device.type]}
        comparisons = given.measure(given, device)
    except (ValueError, RuntimeError, OSError, ModuleNotFoundError, VideoError) as error:
        print(f"benchmark.py: {error}", file=sys.stderr)
        return 2

    print_comparisons(comparisons, items=given.items, measured=measured)
    if given.output:
        hidden = ("measure", "items", "output", "overwrite")
        options = {key: value for key, value in vars(given).items() if key not in hidden}
        save_comparisons(comparisons, given.output, measured=measured, options=options)
        print(given.output)
    return 0


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device is {name!r}; allowed: cpu, cuda, cuda:1, …")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"no {name} here, torch finds {torch.cuda.device_count()} CUDA devices")
    return device


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmark.py",
        description="Compare throughput and peak memory of variants that run in turn, A B C A B C, "
        "so that their ratios hold on a busy machine too. The number of CPU threads is that of "
        "OMP_NUM_THREADS.",
    )
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar="train|infer|data")

    def add(name: str, measure: Callable, items: str, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name,
            help=text,
            description=text,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        command.set_defaults(measure=measure, items=items)
        return command

    train = add(
        "train",
        compare_training,
        "videos",
        "views together and in sequence, blocks kept or recomputed, against plain training",
    )
    infer = add(
        "infer", compare_inference, "clips", "frame-flexible, its extracted sub-network, plain"
    )
    data = add(
        "data",
        compare_reading,
        "samples",
        "one decode for all views against a decode per view, and forms of the same videos",
    )

    _add_network_options(train, infer)
    train.add_argument("--compile", action="store_true", help="also through torch.compile")
    counts = {"nargs": "+", "type": _positive, "metavar": "T"}
    for command in (train, data):
        command.add_argument("--frames", default=[4, 8, 16], help="the views", **counts)
    infer.add_argument("--frames", help="tested; without it, the trained ones", **counts)
    infer.add_argument("--trained-frames", default=[4, 8, 16], help="sub-networks", **counts)
    _add_data_options(data)
    for command, rounds in ((train, 10), (infer, 20), (data, 5)):
        option = command.add_argument
        option("--rounds", type=_positive, default=rounds, metavar="N", help="timed runs of each")
        option("--output", type=Path, metavar="FILE.json", help="also write the results there")
        option("--overwrite", action="store_true", help="replace a file that is there")
    return parser


def _add_network_options(train: argparse.ArgumentParser, infer: argparse.ArgumentParser) -> None:
    train.add_argument(
        "--batch-size",
        type=_positive,
        metavar="B",
        help="videos; without it, 8 on a GPU and 2 on a CPU, whose memory others need too",
    )
    infer.add_argument("--batch-size", type=_positive, default=1, metavar="B", help="videos")
    for command in (train, infer):
        option = command.add_argument
        option("--model", default="tsm_r50", help="a name of the zoo")
        option("--num-classes", type=_positive, default=174, metavar="K", help="classes")
        option("--size", type=_positive, default=224, metavar="PX", help="side of a frame")
        option("--precision", default="fp32", choices=["fp32", "bf16", "fp16"], help="arithmetic")
        option("--device", help="cpu, cuda, cuda:1, ...; without it, cuda if there is one")


def _add_data_options(data: argparse.ArgumentParser) -> None:
    option = data.add_argument
    option(
        "--size",
        nargs="+",
        type=_positive,
        default=[224],
        metavar="PX",
        help="sides of a clip, each measured; generated films are 256/224 of it",
    )
    option(
        "--annotations",
        type=Path,
        metavar="FILE",
        help="list of videos, or a folder per class; without it films are generated",
    )
    option("--root", type=Path, metavar="FOLDER", help="where the paths in the list start")
    option("--videos", type=_positive, default=14, metavar="N", help="how many at most")
    option(
        "--gop",
        nargs="+",
        type=_positive,
        default=[12, 250],
        metavar="N",
        help="frames per group of pictures of generated films, each measured",
    )
    option("--film-frames", type=_positive, default=300, metavar="N", help="of generated films")
    option(
        "--workers",
        nargs="*",
        type=_positive,
        default=[1, 2],
        metavar="N",
        help="numbers of loader processes, each measured; none: leave it out",
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)
