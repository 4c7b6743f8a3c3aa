"""``tools/predict.py FILE… --weights W --frames n``: predict labels of video files."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
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
from ffn.cli.program import Parser, called_as, fail, fail_once, prefix, program
from ffn.files import make_writable

if TYPE_CHECKING:
    import torch

    from ffn.engine.distributed import World
    from ffn.serve import Predictor
    from ffn.serve.report import Report

NAME = "{name}"  # in --save: the name of the video without its suffix
LISTS = (".csv", ".tsv", ".txt")
PICTURES = (".png", ".gif", ".mp4")


@program("predict", "the same command starts again; leave out the files above")
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the labels of each file.

    Returns:
        0; 1 if a file could not be read; 2 if the weights could not be loaded.
    """
    given = _parser().parse_args(arguments)
    if given.output is not None:
        return _predict_list(given)

    from ffn.data import VideoError
    from ffn.serve.report import FORMATS
    from ffn.zoo import WeightsError

    try:
        _refuse_lists(given.files)
        targets = _targets(given)
        load_imports(given)
        predictor = _predictor(given, find_device(given.device), given.precision)
        predict = _prediction(given, predictor)
    except (ValueError, OSError, ImportError, WeightsError) as error:
        return fail("predict", error)

    report, failed = FORMATS[given.format](sys.stdout, given.top), 0
    for path, target in zip(given.files, targets, strict=True):
        try:
            predict(path, target, report)
        except VideoError as error:
            print(f"{prefix('predict')}: {error}", file=sys.stderr)
            report.add_error(path, error.cause)
            failed += 1
        except OSError as error:  # of a picture
            return fail("predict", error)
    if failed:
        text = f"{failed} of {len(given.files)} files could not be read"
        print(f"{prefix('predict')}: {text}", file=sys.stderr)
    return 1 if failed else 0


def _refuse_lists(files: Sequence[str]) -> None:
    """Raise ValueError for a list among the videos."""
    for path in files:
        if Path(path).suffix.lower() in LISTS and Path(path).is_file():
            raise ValueError(f"{path} is no video; for a list of videos, add --output TABLE.csv")


def _predict_list(given: argparse.Namespace) -> int:
    """Predict a list of videos into a table, in all processes; returns the exit status."""
    from ffn.data.workers import check_timeout

    try:
        if len(given.files) > 1:
            raise ValueError(f"--output is for one list of videos; got {len(given.files)} files")
        for option in ("save", "window"):
            if getattr(given, option) is not None:
                raise ValueError(f"--{option} is not for lists of videos; leave out --output")
        refuse_existing(given.output, given.overwrite)
        make_writable(given.output.parent)
        check_timeout(given.timeout)
        load_imports(given)
        device = find_device(given.device)
    except (ValueError, OSError, ImportError) as error:
        return fail_once("predict", error)

    from ffn.engine.failures import run_command

    return run_command(prefix("predict"), partial(_archive, given), device=device)


def _archive(given: argparse.Namespace, world: World) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from ffn.serve.archive import ArchiveOptions, Listed, predict_archive

    videos = Listed.read(Path(given.files[0]), given.root)
    options = ArchiveOptions(
        frames=given.frames,
        budget_ms=given.budget_ms,
        budget_gmacs=given.budget_gmacs,
        labels=given.top,
        features=given.features,
        batch_size=given.batch_size,
        workers=given.workers,
        timeout=given.timeout,
    )

    def build(precision: str | None) -> Predictor:
        return _predictor(given, world.device, precision or given.precision)

    console = Console(stderr=True)
    hidden = not (world.is_main and console.is_terminal)
    with Progress(console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("predicting", total=None)
        result = predict_archive(
            build,
            videos,
            given.output,
            options,
            rank=world.rank,
            size=world.size,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if world.is_main:
        kept = f", {result.kept} of them by an earlier call" if result.kept else ""
        errors = f"; {result.errors} could not be read, see its column error"
        print(f"{given.output}: {result.videos} videos{kept}{errors if result.errors else ''}")


def _predictor(given: argparse.Namespace, device: torch.device, precision: str) -> Predictor:
    from ffn.serve import Predictor

    return Predictor(
        given.weights,
        device=device,
        pattern=given.pattern,
        precision=precision,
        fuse=not given.no_fuse,
        compile=given.compile,
    )


def _prediction(
    given: argparse.Namespace, predictor: Predictor
) -> Callable[[str, Path | None, Report], None]:
    """A function that predicts a video, draws it if there is a target, and reports it."""
    from ffn.serve import merge_windows
    from ffn.serve.clips import Windows
    from ffn.serve.pictures import save, save_video

    reader = predictor.reader(
        given.frames, budget_ms=given.budget_ms, budget_gmacs=given.budget_gmacs
    )
    options = {"pattern": predictor.pattern, "fps": given.fps}

    def whole(path: str, target: Path | None, report: Report) -> None:
        clip = reader.read(path)
        prediction = predictor.predict([clip])[0]
        if target is not None:
            save(target, path, clip, prediction, **options)
        report.add(prediction)

    def in_windows(path: str, target: Path | None, report: Report) -> None:
        found = list(predictor.predict_all(reader.read_windows(path, windows)))
        segments = merge_windows(found)
        if target is not None:
            seen = [index for window in found for index in window.indices]
            save_video(target, path, segments, seen, **options)
        report.add_windows(found, segments)

    if given.window is None:
        if given.step is not None:
            raise ValueError(f"--step is {given.step:g}; it needs --window, their length")
        return whole
    windows = Windows(given.window, given.step, given.fps)
    return in_windows


def _targets(given: argparse.Namespace) -> list[Path | None]:
    """The picture or video of each file that ``--save`` names; None without it.

    Raises:
        ValueError: another kind of file, or one for several videos.
        FileExistsError: a file exists.
        OSError: a folder cannot be written.
    """
    if given.save is None:
        return [None] * len(given.files)
    kind = Path(given.save).suffix.lower()
    if kind not in PICTURES:
        raise ValueError(f"--save is {given.save}; expected a file *{', *'.join(PICTURES)}")
    if given.window is not None and kind != ".mp4":
        raise ValueError(f"--save is {given.save}; with --window, expected a file *.mp4")
    if len(given.files) > 1 and NAME not in given.save:
        raise ValueError(
            f"--save is {given.save}, for {len(given.files)} files; put {NAME} into it, which is "
            f"the name of the file, e.g. out/{NAME}{kind}"
        )
    targets = [Path(given.save.replace(NAME, Path(path).stem)) for path in given.files]
    repeated = [target for target in targets if targets.count(target) > 1]
    if repeated:
        raise ValueError(f"--save gives several files the name {repeated[0]}; predict them alone")
    for target in targets:
        refuse_existing(target, given.overwrite, "--save")
    for folder in {target.parent for target in targets}:
        make_writable(folder)
    return targets


def _frames(text: str) -> int | str:
    try:
        return text if text == "auto" else positive_int(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f'{error}, nor "auto"') from None


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of 0 or more")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("predict"),
        description="Predict labels of videos, with any number of frames. Prints those of files; "
        "with --output, writes those of a list of videos to a table, also under torchrun, and goes "
        "on where a stopped call ended. Exit status: 0 predicted; 1 a file could not be read; "
        "2 error, with a message that names the cause.",
    )
    option = parser.add_argument
    option(
        "files",
        nargs="+",
        metavar="FILE",
        help="video files, folders of frames, or addresses as https://host/video.mp4; with "
        "--output, one list of these: a csv with a column path, or a path per line",
    )
    option("--weights", required=True, help="name in the zoo, or a .pt or .safetensors file")
    _add_frames(parser)
    option("--top", type=positive_int, default=5, metavar="k", help="labels per file; default: 5")
    _add_windows(parser)
    _add_output(parser)
    _add_list(parser)
    add_device_argument(parser)
    option(
        "--pattern",
        metavar="NAME",
        help="file names in a folder of frames, e.g. img_{:05d}.jpg; default: data.frame_pattern "
        "of the training, else {:05d}.jpg",
    )
    option(
        "--precision",
        choices=("auto", "fp32", "bf16", "fp16"),
        default="auto",
        help="auto, the default: bf16 on CPUs where it is faster by a measurement, else fp32; half "
        "precision on CUDA",
    )
    option("--no-fuse", action="store_true", help="run the network as it was trained")
    option("--compile", action="store_true", help="compile it; worth it for many files")
    add_imports_argument(parser)
    return parser


def _add_frames(parser: argparse.ArgumentParser) -> None:
    """Options that choose the number of frames."""
    option = parser.add_mutually_exclusive_group().add_argument
    option(
        "--frames",
        type=_frames,
        metavar="n",
        help="frames of a clip, or auto: at most 8 per second and none twice; default: the largest "
        "trained count",
    )
    option(
        "--budget-ms",
        type=float,
        metavar="MS",
        help="the most frames whose forward pass takes at most this time, by a measurement that is "
        "made once",
    )
    option(
        "--budget-gmacs",
        type=float,
        metavar="G",
        help="the most frames of at most so many giga multiply-accumulates",
    )


def _add_windows(parser: argparse.ArgumentParser) -> None:
    """Options for long videos."""
    option = parser.add_argument
    option(
        "--window",
        type=float,
        metavar="SECONDS",
        help="predict windows of this length, and join those with the same label to segments",
    )
    option(
        "--step",
        type=float,
        metavar="SECONDS",
        help="from the start of a window to that of the next; default: half a window",
    )
    option(
        "--fps",
        type=float,
        metavar="n",
        help="frames per second of folders of frames, which have no times",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    """Options about what is printed and written."""
    option = parser.add_argument
    option(
        "--format",
        choices=("text", "json", "csv"),
        default="text",
        help="text for people, the default; json: an object per line and file; csv: a table",
    )
    option(
        "--save",
        metavar="PICTURE",
        help="also write *.png or *.gif, the frames that the network saw with the labels, or "
        f"*.mp4, the video with its labels; {NAME} stands for the name of a file",
    )
    option("--overwrite", action="store_true", help="replace files of --save or --output")


def _add_list(parser: argparse.ArgumentParser) -> None:
    """Options for lists of videos."""
    option = parser.add_argument
    option(
        "--output",
        type=Path,
        metavar="TABLE",
        help="predict a list of videos into this *.csv or *.parquet file",
    )
    option("--root", help="folder that relative paths of the list start from; default: its folder")
    option(
        "--features",
        action="store_true",
        help="also write the features before the classifier, to a *.parquet file",
    )
    option(
        "--batch-size",
        type=positive_int,
        default=16,
        metavar="n",
        help="videos of the list per forward pass; default: 16",
    )
    option(
        "--workers",
        type=_count,
        default=min(8, max(1, (os.cpu_count() or 1) - 1)),
        metavar="n",
        help="processes that decode the videos of the list, per process; default: %(default)s here",
    )
    option(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="time for a batch of the list; a video that blocks is a row with its cause; "
        "default: 600",
    )
