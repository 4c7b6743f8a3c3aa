"""``tools/predict.py FILE… --weights W --frames n``: predict labels of video files."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ffn.cli.arguments import (
    WEIGHTS_HELP,
    add_device_argument,
    add_imports_argument,
    add_network_arguments,
    find_device,
    frames_auto_or_early_exit,
    load_imports,
    positive_int,
    positive_number,
    refuse_existing,
)
from ffn.cli.predict_list import (
    add_list_arguments,
    build_predictor,
    predict_list,
    refuse_list_arguments,
)
from ffn.cli.program import Parser, called_as, fail, prefix, program
from ffn.files import make_writable

if TYPE_CHECKING:
    from ffn.serve import Predictor
    from ffn.serve.output import TextOutput

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
        return predict_list(given)

    from ffn.data import VideoError
    from ffn.serve.output import OUTPUTS
    from ffn.zoo import WeightsError

    try:
        _refuse(given)
        targets = _targets(given)
        load_imports(given)
        predictor = build_predictor(
            given, find_device(given.device), given.precision, given.early_exit
        )
        predict = _prediction(given, predictor)
    except (ValueError, OSError, ImportError, WeightsError) as error:
        return fail("predict", error)

    report, failed = OUTPUTS[given.format](sys.stdout, given.top), 0
    for path, target in zip(given.files, targets, strict=True):
        try:
            predict(path, target, report)
        except VideoError as error:
            print(f"{prefix('predict')}: {error}", file=sys.stderr)
            report.add_error(path, error.cause)
            failed += 1
        except (ValueError, OSError) as error:  # too many windows; a picture
            return fail("predict", error)
    if failed:
        text = f"{failed} of {len(given.files)} files could not be read"
        print(f"{prefix('predict')}: {text}", file=sys.stderr)
    return 1 if failed else 0


def _refuse(given: argparse.Namespace) -> None:
    """Raise ValueError for a list among the videos, and for options that would do nothing."""
    for path in given.files:
        if Path(path).suffix.lower() in LISTS and Path(path).is_file():
            raise ValueError(f"{path} is no video; for a list of videos, add --output TABLE.csv")
    refuse_list_arguments(given)
    if given.step is not None and given.window is None:
        raise ValueError(f"--step is {given.step:g}; it needs --window, their length")
    if given.heat_map and given.save is None:
        raise ValueError("--heat-map is drawn into a picture; add --save *.png, *.gif or *.mp4")
    if given.heat_map and given.window is not None:
        raise ValueError("--heat-map is not for --window; leave one of them out")
    for option in ("label", "layer"):
        if getattr(given, option) is not None and not given.heat_map:
            raise ValueError(f"--{option} is for --heat-map; add it")
    if _uses_early_exit(given) and given.window is not None:
        raise ValueError("early exit is for whole videos; leave out --window, or give --frames n")
    saves_video = given.save is not None and given.save.lower().endswith(".mp4")
    if given.fps is not None and given.window is None and not saves_video:
        raise ValueError(f"--fps is {given.fps:g}; it is for --window and for --save *.mp4")


def _uses_early_exit(given: argparse.Namespace) -> bool:
    return given.early_exit is not None or given.frames == "early_exit"


def _prediction(
    given: argparse.Namespace, predictor: Predictor
) -> Callable[[str, Path | None, TextOutput], None]:
    """A function that predicts a video, draws it if there is a target, and reports it."""
    from ffn.serve import merge_windows
    from ffn.serve.clips import Windows
    from ffn.serve.heat_maps import find_class
    from ffn.serve.pictures import save, save_video

    if not _uses_early_exit(given):
        reader = predictor.reader(
            given.frames, budget_ms=given.budget_ms, budget_gmacs=given.budget_gmacs
        )
    options = {"pattern": predictor.pattern, "fps": given.fps}
    if given.label is not None:
        find_class(given.label, predictor.classes)

    def whole(path: str, target: Path | None, report: TextOutput) -> None:
        if _uses_early_exit(given):
            clip, prediction = predictor.predict_early_exit([path])[0]
        else:
            clip = reader.read(path)
            prediction = predictor.predict([clip])[0]
        if target is not None:
            heat = None
            if given.heat_map:
                label = given.label or prediction.top(1)[0][0]
                heat = predictor.heat_map(clip, label=label, layer=given.layer)
            save(target, path, clip, prediction, heat=heat, **options)
        report.add(prediction)

    def in_windows(path: str, target: Path | None, report: TextOutput) -> None:
        found = list(predictor.predict_all(reader.read_windows(path, windows)))
        segments = merge_windows(found)
        if target is not None:
            seen = [index for window in found for index in window.indices]
            save_video(target, path, segments, seen, **options)
        report.add_windows(found, segments)

    if given.window is None:
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
    names = [Path(os.path.abspath(path)).stem for path in given.files]  # "." is a folder, too
    targets = [Path(given.save.replace(NAME, name)) for name in names]
    repeated = [target for target in targets if targets.count(target) > 1]
    if repeated:
        raise ValueError(f"--save gives several files the name {repeated[0]}; predict them alone")
    for target in targets:
        refuse_existing(target, given.overwrite, "--save", inputs=given.files)
    for folder in {target.parent for target in targets}:
        make_writable(folder)
    return targets


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("predict"),
        description="Predict labels of videos, with any number of frames. Prints those of files; "
        "with --output, writes those of a list of videos to a table, also under torchrun, and goes "
        "on where a stopped call ended. Exit status: 0 predicted; 1 a file could not be read (with "
        "--output, it is a row with its cause, and the status is 0); 2 error, with a message that "
        "names the cause.",
    )
    option = parser.add_argument
    option(
        "files",
        nargs="+",
        metavar="FILE",
        help="video files, folders of frames, or addresses as https://host/video.mp4; with "
        "--output, one list of these: a csv with a column path, or a path per line",
    )
    option("--weights", required=True, help=WEIGHTS_HELP)
    _add_frames(parser)
    option("--top", type=positive_int, default=5, metavar="k", help="labels per file; default: 5")
    _add_windows(parser)
    _add_output(parser)
    add_list_arguments(parser)
    add_device_argument(parser)
    add_network_arguments(parser)
    add_imports_argument(parser)
    return parser


def _add_frames(parser: argparse.ArgumentParser) -> None:
    """Options that choose the number of frames."""
    option = parser.add_mutually_exclusive_group().add_argument
    option(
        "--frames",
        type=frames_auto_or_early_exit,
        metavar="n",
        help="frames of a clip; or auto: 8 per second, rounded up, none twice; or early_exit: more "
        "only if few are not enough, by the early exit that is kept with the weights; default: the "
        "largest trained count",
    )
    option(
        "--budget-ms",
        type=positive_number,
        metavar="MS",
        help="the most frames whose forward pass takes at most this time, by a measurement that is "
        "made once",
    )
    option(
        "--budget-gmacs",
        type=positive_number,
        metavar="G",
        help="the most frames of at most so many giga multiply-accumulates",
    )
    option(
        "--early-exit",
        metavar="FILE",
        help="as --frames early_exit, by this file of ffn early_exit for these weights",
    )


def _add_windows(parser: argparse.ArgumentParser) -> None:
    """Options for long videos."""
    option = parser.add_argument
    option(
        "--window",
        type=positive_number,
        metavar="SECONDS",
        help="predict windows of this length, and join those with the same label to segments",
    )
    option(
        "--step",
        type=positive_number,
        metavar="SECONDS",
        help="from the start of a window to that of the next; default: half a window",
    )
    option(
        "--fps",
        type=positive_number,
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
    option(
        "--heat-map",
        action="store_true",
        help="draw over the frames of --save where the network sees evidence for the label "
        "(Grad-CAM)",
    )
    option("--label", metavar="CLASS", help="class of the heat map; default: the most probable")
    option(
        "--layer",
        metavar="NAME",
        help="layer whose feature map the heat map is made of, e.g. net.layer3; default: the last "
        "with more than one position per frame",
    )
    option("--overwrite", action="store_true", help="replace files of --save or --output")
