"""``tools/benchmark.py``: throughput and memory as ratios from one run, of several jobs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ffn.cli.arguments import (
    add_device_argument,
    add_imports_argument,
    find_device,
    load_imports,
    positive_int,
    refuse_existing,
)
from ffn.cli.benchmark_options import (
    add_archive_options,
    add_data_options,
    add_network_options,
    add_store_options,
    integer,
)
from ffn.cli.program import Parser, called_as, fail, program

if TYPE_CHECKING:
    from ffn.benchmarks.timing import Comparison
    from ffn.engine.train_step import TrainStep

# Functions of ffn.benchmarks.report that write the table of a benchmark.
TABLES = {
    "infer": "markdown_table",
    "layers": "markdown_ratios",
    "versions": "markdown_versions",
}


@program("benchmark", "the same command starts again; `infer --resume` continues")
def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure, print and write; returns 2 on an error."""
    given = _parser().parse_args(arguments)
    # The profiler measures CPU memory; without this it logs that there is no GPU.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")

    from ffn.benchmarks import report
    from ffn.data import VideoError
    from ffn.files import make_writable, write_text

    try:
        resumes = given.resume and given.output is not None and given.output.exists()
        for path in [] if resumes else _files(given):
            refuse_existing(path, given.overwrite)
        if given.output:
            make_writable(given.output.parent)
        load_imports(given)
        torch.manual_seed(0)
        device, measured = _describe(given)
        comparisons, options = _earlier(given, measured)
        given.done = [comparison.title for comparison in comparisons]
        for comparison in given.measure(given, device):
            comparisons.append(comparison)
            report.print_comparison(comparison, items=given.items)
            if given.output:  # after each: an interrupted run keeps what it has measured
                report.save_comparisons(
                    comparisons, given.output, measured=measured, options=options
                )
                for table in _files(given)[1:]:
                    written = getattr(report, TABLES[given.benchmark])
                    write_text(table, written(comparisons, measured))
        print(*(f"{key}: {value}" for key, value in measured.items()), sep="\n")
        print(*_files(given), sep="\n")
    except (ValueError, RuntimeError, OSError, ImportError, VideoError) as error:
        return fail("benchmark", error)
    return 0


def _describe(given: argparse.Namespace) -> tuple[torch.device, dict[str, Any]]:
    """The device, and what the file says about machine and measurement."""
    from ffn.benchmarks.report import MEMORY, ONNX_MEMORY, describe_run
    from ffn.benchmarks.timing import PRODUCT_SIZES, product_speed
    from ffn.devices import has_bf16
    from ffn.host_memory import tune_allocator

    if given.benchmark in ("data", "store"):
        device = torch.device("cpu")
        return device, describe_run(device)
    device = find_device(given.device, MEMORY)
    measured = describe_run(device)
    if given.benchmark == "archive":
        from ffn.engine.jobs import usable_cores

        return device, measured | {"cores": usable_cores()}
    measured |= {"memory": MEMORY[device.type]}
    if given.benchmark == "infer":
        given.frames = given.frames or given.trained_frames
        if device.type == "cpu" and tune_allocator():  # as tools/predict.py and tools/test.py
            measured |= {"allocator": "of glibc, tuned (ffn.tune_allocator)"}
        measured |= {"memory_onnx": ONNX_MEMORY} if given.onnx else {}
        dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
        if device.type == "cpu" and not has_bf16():
            del dtypes["bf16"]
            measured |= {"bf16": "left out: torch has no fast operators for this processor"}
        speeds = {name: product_speed(dtype, device) / 1e9 for name, dtype in dtypes.items()}
        measured |= {"product_gflops": {name: round(speed, 1) for name, speed in speeds.items()}}
        measured |= {"product_size": PRODUCT_SIZES[device.type]}
    elif given.benchmark == "train":
        given.batch_size = given.batch_size or (8 if device.type == "cuda" else 2)
        measured |= {"precision": given.precision}
    elif given.benchmark == "versions":
        from ffn.benchmarks.versions import MEMORY as PROCESS_MEMORY
        from ffn.benchmarks.versions import NOW, describe_tree

        measured |= {"before": describe_tree(given.before), "now": describe_tree(NOW)}
        measured |= {"memory": PROCESS_MEMORY if device.type == "cpu" else MEMORY["cuda"]}
    return device, measured


def _earlier(
    given: argparse.Namespace, measured: dict[str, Any]
) -> tuple[list[Comparison], dict[str, Any]]:
    """Comparisons of the benchmark that is resumed, if any, and the options of all."""
    from ffn.benchmarks.report import load_comparisons

    hidden = ("measure", "items", "output", "overwrite", "resume", "done", "before")
    options = {key: value for key, value in vars(given).items() if key not in hidden}
    if given.resume and (given.output is None or given.overwrite):
        raise ValueError("--resume continues the benchmark of --output, without --overwrite")
    if not given.resume or not given.output.exists():
        return [], options
    return load_comparisons(given.output, measured=measured, options=options)


def _train(given: argparse.Namespace, device: torch.device) -> Iterator[Comparison]:
    from ffn.benchmarks.training import compare_training
    from ffn.engine import build, build_network
    from ffn.engine.config import load_config
    from ffn.engine.distributed import World

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
        batch_size=given.batch_size,
        size=given.size,
        num_classes=given.num_classes,
        precision=given.precision,
        compiled=given.compile,
        rounds=given.rounds,
        device=device,
    )


def _infer(given: argparse.Namespace, device: torch.device) -> Iterator[Comparison]:
    from ffn.benchmarks.inference import compare_inference

    if given.onnx and device.type != "cpu":
        raise ValueError("--onnx runs on a CPU; add --device cpu")
    for model in given.model:
        yield from compare_inference(
            model,
            given.trained_frames,
            frames=given.frames,
            batch_sizes=given.batch_size,
            size=given.size,
            num_classes=given.num_classes,
            compiled=given.compile,
            onnx=given.onnx,
            rounds=given.rounds,
            device=device,
            skip=given.done,
        )


def _layers(given: argparse.Namespace, device: torch.device) -> Iterator[Comparison]:
    from ffn.benchmarks.layers import compare_layers

    yield from compare_layers(frames=given.frames, rounds=given.rounds, device=device)


def _versions(given: argparse.Namespace, device: torch.device) -> Iterator[Comparison]:
    from ffn.benchmarks.versions import compare_versions

    worker = Path(__file__).with_name("version_worker.py").read_text(encoding="utf-8")
    for model in given.model:
        yield from compare_versions(
            given.before,
            model,
            given.trained_frames,
            worker=worker,
            frames=given.frames,
            batch_size=given.batch_size,
            size=given.size,
            num_classes=given.num_classes,
            precision=given.precision,
            rounds=given.rounds,
            device=device,
        )


def _data(given: argparse.Namespace, _: torch.device) -> Iterator[Comparison]:
    from ffn.benchmarks.reading import compare_reading

    yield from compare_reading(
        given.frames,
        sizes=given.size,
        annotations=given.annotations,
        root=given.root,
        videos=given.videos,
        gops=given.gop,
        video_frames=given.video_frames,
        workers=given.workers,
        rounds=given.rounds,
    )


def _store(given: argparse.Namespace, _: torch.device) -> Iterator[Comparison]:
    from ffn.benchmarks.remote_store import compare_access

    yield from compare_access(
        clips=given.clips,
        frames=given.frames,
        videos=given.videos,
        video_frames=given.video_frames,
        latency=given.latency / 1e3,
        bandwidth=given.bandwidth * 1e6 / 8,
        rounds=given.rounds,
    )


def _archive(given: argparse.Namespace, device: torch.device) -> Iterator[Comparison]:
    from ffn.benchmarks.archive import compare_archive

    yield from compare_archive(
        given.model,
        frames=given.frames,
        size=given.size,
        videos=given.videos,
        video_frames=given.video_frames,
        batch_size=given.batch_size,
        workers=given.workers,
        rounds=given.rounds,
        device=device,
    )


def _files(given: argparse.Namespace) -> list[Path]:
    """What ``--output`` writes: the measurements, and for some benchmarks a table."""
    if given.output is None:
        return []
    if given.output.suffix == ".md":
        raise ValueError(f"--output is {given.output}; name the .json file, e.g. infer.json")
    table = given.output.with_suffix(".md")
    return [given.output, table] if given.benchmark in TABLES else [given.output]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("benchmark"),
        description="Compare throughput and peak memory of variants. The variants alternate, "
        "A B C A B C, so that other load on the machine affects all of them equally. "
        "OMP_NUM_THREADS sets the number of CPU threads.",
    )
    commands = parser.add_subparsers(
        dest="benchmark", required=True, metavar="train|infer|layers|versions|data|store|archive"
    )

    def add(name: str, measure: Callable, items: str, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=f"Compare {text}.")
        command.set_defaults(measure=measure, items=items)
        return command

    steps = "training steps: all views together, in sequence, with activation checkpointing; plain"
    train = add("train", _train, "videos", f"{steps} training")
    passes = "forward passes: the frame-flexible network as trained, fused, in bf16, compiled, in"
    infer = add("infer", _infer, "clips", f"{passes} ONNX Runtime")
    forms = "single layers: the form that networks of ffn run, and others with the same outputs"
    layers = add("layers", _layers, "calls", forms)
    trees = "this version with an earlier one, in own processes: training steps, or forward passes"
    versions = add("versions", _versions, "videos", trees)
    samples = "training samples: one decode for all views or one per view, video formats, data"
    data = add("data", _data, "samples", f"{samples} loader workers")

    ways = "a clip store at a simulated distant address: range requests, whole shards"
    store = add("store", _store, "clips", ways)

    parts = "the prediction of a list of videos: all of it, reading the clips, the network"
    archive = add("archive", _archive, "videos", parts)

    several = {"nargs": "+", "metavar": "T"}
    for command in (train, data):
        integer(command, "--frames", [4, 8, 16], "frame counts of the views", **several)
    for command in (infer, versions):
        text = "frame counts of the sub-networks"
        integer(command, "--trained-frames", [4, 8, 16], text, **several)
    text = "forward passes of clips with this many frames; without it, a training step"
    versions.add_argument("--frames", type=positive_int, default=(), help=text, **several)
    text = "source tree of the earlier version"
    versions.add_argument("--before", type=Path, required=True, metavar="FOLDER", help=text)
    integer(infer, "--frames", None, "frame counts of the clips; default: trained ones", **several)
    add_network_options(train, infer, versions)
    add_data_options(data)
    add_store_options(store)
    add_archive_options(archive)
    integer(layers, "--frames", 8, "frames of the clips", metavar="T")
    add_device_argument(layers)
    for command, rounds in ((train, 10), (infer, 20), (layers, 20), (versions, 10)):
        _add_rounds(command, rounds)
    for command in (data, store, archive):
        _add_rounds(command, 5)
    text = (
        "keep the comparisons in --output and measure those that are missing; --model, --frames and"
    )
    infer.add_argument("--resume", action="store_true", help=f"{text} --batch-size may differ")
    parser.set_defaults(resume=False, done=())
    return parser


def _add_rounds(command: argparse.ArgumentParser, rounds: int) -> None:
    """Options of all benchmarks."""
    option = command.add_argument
    integer(command, "--rounds", rounds, "timed runs of each variant")
    option("--output", type=Path, metavar="FILE.json", help="also write the results to a file")
    option("--overwrite", action="store_true", help="replace an existing file")
    add_imports_argument(command)
