"""Options of the benchmarks of ``tools/benchmark.py``."""

from __future__ import annotations

import argparse
from pathlib import Path

from ffn.cli.arguments import add_device_argument, non_negative_int, positive_int


def add_network_options(
    train: argparse.ArgumentParser,
    infer: argparse.ArgumentParser,
    versions: argparse.ArgumentParser,
) -> None:
    """Options of benchmarks of networks."""
    text = "videos per step; default: 8 on a GPU, 2 on a CPU"
    integer(train, "--batch-size", None, text, metavar="B")
    text = "clips per forward pass, each measured"
    integer(infer, "--batch-size", [1], text, nargs="+", metavar="B")
    integer(versions, "--batch-size", 1, "videos per step or forward pass", metavar="B")
    text = "names of models, each measured; default: tsm_r50"
    for command in (infer, versions):
        command.add_argument("--model", nargs="+", default=["tsm_r50"], metavar="MODEL", help=text)
    train.add_argument("--model", default="tsm_r50", help="name of a model; default: tsm_r50")
    precisions = ["fp32", "bf16", "fp16"]
    for command, what in ((train, ""), (versions, "of the training step; ")):
        text = f"{what}default: fp32"
        command.add_argument("--precision", default="fp32", choices=precisions, help=text)
    for command in (train, infer, versions):
        integer(command, "--num-classes", 174, "number of classes", metavar="K")
        integer(command, "--size", 224, "height and width of the frames", metavar="PX")
        add_device_argument(command)
    for command in (train, infer):
        command.add_argument("--compile", action="store_true", help="also measure torch.compile")
    infer.add_argument(
        "--onnx", action="store_true", help="also measure ONNX Runtime, fp32 and int8"
    )


def add_data_options(data: argparse.ArgumentParser) -> None:
    """Options of the benchmark of training samples."""
    several = {"nargs": "+"}
    text = "sides of a clip, each measured; generated videos are 256/224 of it"
    integer(data, "--size", [224], text, metavar="PX", **several)
    text = "list of videos, or a folder per class; without it, videos are generated"
    data.add_argument("--annotations", type=Path, metavar="FILE", help=text)
    text = "folder of the paths in the list"
    data.add_argument("--root", type=Path, metavar="FOLDER", help=text)
    integer(data, "--videos", 14, "maximum number of videos")
    text = "frames per group of pictures of generated videos, each measured"
    integer(data, "--gop", [12, 250], text, **several)
    integer(data, "--video-frames", 300, "frames of a generated video")
    text = "numbers of data loader processes, each measured; without a number, no data loader"
    integer(data, "--workers", [1, 2], text, nargs="*")


def add_store_options(store: argparse.ArgumentParser) -> None:
    """Options of the benchmark of a remote clip store."""
    text = "numbers of clips that are read, each measured"
    integer(store, "--clips", [1, 4, 16], text, nargs="+")
    integer(store, "--frames", 8, "frames of a clip", metavar="T")
    integer(store, "--videos", 32, "generated videos in the store")
    integer(store, "--video-frames", 300, "frames of a generated video")
    text = "milliseconds before each answer"
    integer(store, "--latency", 20, text, metavar="MS")
    integer(store, "--bandwidth", 100, "megabits per second", metavar="MBIT")


def add_archive_options(archive: argparse.ArgumentParser) -> None:
    """Options of the benchmark of archives."""
    text = "names of models, each measured; default: tsm_r50"
    archive.add_argument("--model", nargs="+", default=["tsm_r50"], metavar="MODEL", help=text)
    integer(archive, "--frames", 8, "frames of a clip", metavar="T")
    text = "height and width of a clip; generated videos are 256/224 of it"
    integer(archive, "--size", 224, text, metavar="PX")
    integer(archive, "--batch-size", 16, "videos per forward pass", metavar="B")
    integer(archive, "--videos", 256, "videos in the list")
    integer(archive, "--video-frames", 300, "frames of a generated video")
    text = "processes that decode; 0: none; default: 1"
    archive.add_argument("--workers", type=non_negative_int, default=1, metavar="N", help=text)
    add_device_argument(archive)


def integer(
    parser: argparse.ArgumentParser,
    name: str,
    default: int | list[int] | None,
    text: str,
    metavar: str = "N",
    **more: str,
) -> None:
    """Add an option that takes positive integers; its default follows the help text."""
    if default is not None:
        text += f"; default: {default if isinstance(default, int) else ' '.join(map(str, default))}"
    parser.add_argument(
        name, type=positive_int, default=default, help=text, metavar=metavar, **more
    )
