"""``tools/export.py --weights W --frames T --to onnx``: export a network to a file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffn.cli.arguments import (
    WEIGHTS_HELP,
    add_imports_argument,
    frame_count,
    load_imports,
    positive_int,
)
from ffn.cli.calibration import CLIPS, is_config, read_calibration
from ffn.cli.program import Parser, called_as, fail, program

if TYPE_CHECKING:
    from ffn.export import Calibration
    from ffn.zoo import WeightRecord

HELD_OUT_CLIPS = 512


@program("export", "the same command starts again")
def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, load, export, print the report; returns 2 on an error."""
    given = _parser().parse_args(arguments)

    from ffn.data import VideoError
    from ffn.export import ExportError, export, export_all
    from ffn.zoo import WeightsError, load_with_record

    try:
        load_imports(given)
        _check_arguments(given)
        model, record = load_with_record(given.weights)
        options: dict[str, Any] = {
            "to": given.to,
            "size": given.size,
            "preprocess": given.preprocess,
            "probabilities": given.probabilities,
            "dynamic_frames": given.dynamic_frames,
            "record": _with_hash(record, given.weights).to_dict(),
            "overwrite": given.overwrite,
        }
        if given.calibration:
            options["calibration"] = _calibration(given, record)
        output = given.output or _default_output(record.name, given)
        if given.all_frames:
            report = export_all(model, output, **{**options, "to": given.to or "onnx"})
        else:
            report = export(model, output, frames=given.frames, **options)
    except (ValueError, OSError, ImportError, ExportError, WeightsError, VideoError) as error:
        return fail("export", error)
    print(report)
    return 0


def _check_arguments(given: argparse.Namespace) -> None:
    if (given.frames is None) != given.all_frames:
        raise ValueError("give either --frames T, for one file, or --all-frames, for a folder")
    if not given.output and not given.to:
        raise ValueError("give --output FILE, or the format with --to torch|onnx|aotinductor")
    if given.int8 != bool(given.calibration):
        raise ValueError("--int8 and --calibration belong together: name a config or a list")
    unused = {
        "--calibration-clips": given.calibration_clips,
        "--held-out-clips": given.held_out_clips,
        "--seed": given.seed,
        "--root": given.root,
    }
    named = [name for name, value in unused.items() if value is not None]
    if named and not given.int8:
        raise ValueError(f"{', '.join(named)}: of --int8 only; add it, or leave them out")
    if given.root and (is_config(given.calibration[0]) or Path(given.calibration[0]).is_dir()):
        raise ValueError(
            "--root is for the paths of a list of --calibration; a config has data.root, and a "
            "folder per class has its videos in it"
        )
    if given.all_frames and given.output and not given.to and Path(given.output).suffix:
        raise ValueError(
            f"--all-frames writes a folder, and --output {given.output} has the suffix of a file; "
            "name the format of the files with --to"
        )
    if given.int8 and (given.all_frames or given.size):
        raise ValueError("--int8 takes neither --all-frames nor --size; export one file")


def _calibration(given: argparse.Namespace, record: WeightRecord) -> Calibration:
    from ffn.data import Preprocessing

    return read_calibration(
        given.calibration,
        classes=record.classes,
        preprocessing=Preprocessing.from_dict(record.preprocessing),
        pattern=record.options("data").get("frame_pattern"),
        frames=given.frames,
        root=given.root,
        as_frames=given.preprocess,
        clips=given.calibration_clips,
        held_out=given.held_out_clips or HELD_OUT_CLIPS,
        seed=given.seed or 0,
    )


def _default_output(name: str, given: argparse.Namespace) -> str:
    """``NAME.frames_8.onnx``, or the folder ``NAME.onnx``, in the current folder."""
    from ffn.export.formats import suffix_of

    name = Path(name.replace("\\", "/")).name  # a record of others may have any name
    count = "" if given.all_frames else f".frames_{given.frames}"
    count += ".int8" if given.int8 else ""
    return f"{name}{count}{suffix_of(given.to)}"


def _with_hash(record: WeightRecord, weights: str) -> WeightRecord:
    """The record with the hash of the weights; that of a checkpoint has none."""
    from ffn.zoo import sha256_of

    if record.sha256 is not None or not Path(weights).is_file():
        return record
    return replace(record, sha256=sha256_of(Path(weights)))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("export"),
        description="Export trained weights to a file that runs without ffn, for any batch size, "
        "and compare the file with the network. Of a frame-flexible network, the sub-network for T "
        "frames is exported.",
    )
    option = parser.add_argument
    option("--weights", required=True, help=WEIGHTS_HELP)
    option("--frames", type=frame_count, metavar="T", help="frames of a clip")
    option(
        "--all-frames",
        action="store_true",
        help="write a folder with a file per trained count and an index; ONNX files share weights",
    )
    option(
        "--to",
        metavar="FORMAT",
        help="torch (torch.export, .pt2), onnx, or aotinductor (.aoti.pt2); default: by the suffix "
        "of the output, of a folder onnx",
    )
    option("--output", metavar="FILE", help="default: the name of the weights, with --to")
    option(
        "--preprocess",
        action="store_true",
        help="the file takes uint8 RGB frames (B, T, H, W, 3) of any size, and resizes, crops and "
        "normalizes them",
    )
    option("--probabilities", action="store_true", help="the file returns probabilities")
    option(
        "--dynamic-frames",
        action="store_true",
        help="the file takes clips of any length, not only T",
    )
    option(
        "--size",
        type=positive_int,
        metavar="PX",
        help="height and width of a clip; default: the trained crop",
    )
    _add_int8_arguments(parser)
    option("--overwrite", action="store_true", help="replace an existing file")
    add_imports_argument(parser)
    return parser


def _add_int8_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--int8", action="store_true", help="quantize an ONNX file; needs --calibration")
    option(
        "--calibration",
        nargs="+",
        metavar="SOURCE",
        help="CONFIG [key=value ...]: calibrate with training clips, compare with validation "
        "clips; or LIST [LIST]: annotations for the one, and for the other",
    )
    option("--root", help="folder that relative paths of LIST start from; default: its folder")
    option(
        "--calibration-clips",
        type=positive_int,
        metavar="N",
        help=f"clips that set the int8 ranges; default: {CLIPS}, or half of a single list",
    )
    option(
        "--held-out-clips",
        type=positive_int,
        metavar="N",
        help=f"other clips, to compare int8 with fp32; default: {HELD_OUT_CLIPS}",
    )
    option("--seed", type=int, help="of the choice of clips; default: 0")
