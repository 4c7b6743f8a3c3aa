"""``tools/predict.py FILE… --weights W --frames n``: predict labels of video files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ffn.cli.arguments import (
    add_device_argument,
    add_imports_argument,
    find_device,
    load_imports,
    positive_int,
)
from ffn.cli.program import Parser, called_as, fail, prefix, program


@program("predict", "the same command starts again; leave out the files above")
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the labels of each file.

    Returns:
        0; 1 if a file could not be read; 2 if the weights could not be loaded.
    """
    given = _parser().parse_args(arguments)

    from ffn.data import VideoError
    from ffn.serve import Predictor
    from ffn.zoo import WeightsError

    try:
        load_imports(given)
        predictor = Predictor(
            given.weights,
            device=find_device(given.device),
            pattern=given.pattern,
            precision=given.precision,
            fuse=not given.no_fuse,
            compile=given.compile,
        )
        choice = _choice(given)
        predictor.check_choice(**choice)
    except (ValueError, OSError, ImportError, WeightsError) as error:
        return fail("predict", error)

    failed = 0
    for path in given.files:
        try:
            prediction = predictor(path, **choice)
        except VideoError as error:
            print(f"{prefix('predict')}: {error}", file=sys.stderr)
            failed += 1
            continue
        network = f"sub-network {prediction.active}" if prediction.active else "plain network"
        several = "; several labels, independent probabilities" if prediction.multi_label else ""
        why = f" ({prediction.why})" if prediction.why else ""
        print(
            f"{path}: {prediction.frames} frames{why}, {network}, {prediction.network}, "
            f"decode {prediction.decode_ms:.1f} ms, model {prediction.model_ms:.1f} ms{several}"
        )
        for label, probability in prediction.top(given.top):
            print(f"  {probability:7.2%}  {label}")
    if failed:
        text = f"{failed} of {len(given.files)} files could not be read"
        print(f"{prefix('predict')}: {text}", file=sys.stderr)
    return 1 if failed else 0


def _choice(given: argparse.Namespace) -> dict[str, int | float | str]:
    """What chooses the number of frames, as arguments of a predictor."""
    choice = {key: getattr(given, key) for key in ("frames", "budget_ms", "budget_gmacs")}
    return {key: value for key, value in choice.items() if value is not None}


def _frames(text: str) -> int | str:
    try:
        return text if text == "auto" else positive_int(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f'{error}, nor "auto"') from None


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("predict"),
        description="Predict labels of video files, with any number of frames.",
    )
    option = parser.add_argument
    option("files", nargs="+", metavar="FILE", help="video files or folders of frames")
    option("--weights", required=True, help="name in the zoo, or a .pt or .safetensors file")
    frames = parser.add_mutually_exclusive_group().add_argument
    frames(
        "--frames",
        type=_frames,
        metavar="n",
        help="frames of a clip, or auto: at most 8 per second and none twice; default: the largest "
        "trained count",
    )
    frames(
        "--budget-ms",
        type=float,
        metavar="MS",
        help="the most frames whose forward pass takes at most this time, by a measurement that is "
        "made once",
    )
    frames(
        "--budget-gmacs",
        type=float,
        metavar="G",
        help="the most frames of at most so many giga multiply-accumulates",
    )
    option("--top", type=positive_int, default=5, metavar="k", help="labels per file; default: 5")
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
