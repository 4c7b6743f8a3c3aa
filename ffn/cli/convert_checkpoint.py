"""``tools/convert_checkpoint.py IN OUT --model M``: convert weights of other implementations."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ffn.cli.arguments import add_imports_argument, load_imports
from ffn.cli.program import Parser, called_as, fail, program


@program("convert_checkpoint", "the same command starts again")
def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, convert, write weights and record, print what matched; returns 2 on an error."""
    given = _parser().parse_args(arguments)

    from ffn.data import Preprocessing, read_classes
    from ffn.zoo import WeightsError, save_weights
    from ffn.zoo.remap import from_foreign, read_foreign

    try:
        load_imports(given)
        _check_kind(given.input)
        classes = read_classes(given.classes) if given.classes else None
        converted = from_foreign(
            read_foreign(given.input),
            model=given.model,
            source=given.source,
            trained_frames=tuple(given.trained_frames) if given.trained_frames else None,
            num_classes=given.num_classes,
            min_match=given.partial,
        )
        preprocessing = Preprocessing.from_dict(
            {**Preprocessing().to_dict(), **converted.preprocessing, **dict(given.preprocessing)}
        )
        record = save_weights(
            converted.model,
            given.output,
            {
                "model": given.model,
                "imports": given.imports,
                "num_classes": converted.num_classes,
                "classes": classes,
                "trained_frames": converted.trained_frames,
                "preprocessing": preprocessing.to_dict(),
                "source": f"{converted.source}: {given.input.name}",
            },
            overwrite=given.overwrite,
        )
    except (ValueError, OSError, ImportError, WeightsError) as error:
        return fail("convert_checkpoint", error)

    detected = "" if given.source else " (detected from the names of the entries)"
    print(f"source: {converted.source}{detected}")
    print(converted.match)
    counts = " ".join(map(str, converted.trained_frames or ["none, a plain network"]))
    print(f"trained frames: {counts}")
    print(f"classes: {converted.num_classes}" + ("" if classes else ", unnamed"))
    shown = ", ".join(f"{key} {value}" for key, value in preprocessing.to_dict().items())
    print(f"preprocessing: {shown} (change it with --preprocessing)")
    print(f"written: {given.output} ({record.size:,} bytes) and its record, sha256 {record.sha256}")
    return 0


def _check_kind(path: Path) -> None:
    if path.suffix == ".safetensors" and path.is_file():
        raise ValueError(
            f"{path} is a .safetensors file; expected a torch file (.pth, .pth.tar, .pyth, .pt, "
            ".ckpt, .bin) or a Caffe2 file (.pkl). ffn.load reads a file that ffn wrote. Save the "
            "tensors of another one as a torch file: torch.save(safetensors.torch.load_file("
            f"{path.name!r}), {path.stem + '.pth'!r})"
        )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("convert_checkpoint"),
        description="Read a checkpoint of another implementation, without executing pickled code, "
        "and write a safetensors file with a record for ffn.load.",
    )
    parser.add_argument("input", metavar="IN", type=Path, help="a .pth, .pyth, .tar or .pkl file")
    parser.add_argument("output", metavar="OUT", type=Path, help="ends in .safetensors")
    parser.add_argument(
        "--from",
        dest="source",
        choices=["ffn-pytorch", "tsm", "pyslowfast", "uniformer", "mmaction2", "image"],
        help="implementation that wrote it; default: detected from the names of its entries",
    )
    parser.add_argument("--model", required=True, help="name of the model in ffn, e.g. tsm_r50")
    parser.add_argument(
        "--trained-frames",
        nargs="+",
        type=int,
        metavar="T",
        help="frame counts of a flexible checkpoint; for a plain one, those of the flexible "
        "network to build from it",
    )
    parser.add_argument(
        "--num-classes",
        type=int,
        metavar="K",
        help="number of classes; default: that of the checkpoint. Another number, or a checkpoint "
        "without a classifier, gives a new classifier",
    )
    parser.add_argument(
        "--partial",
        nargs="?",
        type=float,
        const=0.95,
        metavar="SHARE",
        help="accept a checkpoint that contains this share of the network's parameters (0.95 if no "
        "number follows); the others are initialized. Without it, everything must match",
    )
    parser.add_argument(
        "--preprocessing",
        nargs="+",
        type=_setting,
        default=[],
        metavar="KEY=VALUE",
        help="preprocessing of its training where it differs from the default of its source, e.g. "
        "crop=256 resize=256 color=bgr sampling=dense mean=0.45,0.45,0.45",
    )
    parser.add_argument("--classes", metavar="FILE", help="class names, one per line")
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")
    add_imports_argument(parser)
    return parser


def _setting(text: str) -> tuple[str, object]:
    """``crop=256`` or ``mean=0.45,0.45,0.45`` as key and value."""
    key, _, value = text.partition("=")
    kinds = {"crop": int, "resize": int, "mean": _three, "std": _three, "color": str}
    kinds["sampling"] = str
    try:
        return key, kinds[key](value)
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a setting; examples: crop=256 resize=256 mean=0.45,0.45,0.45 "
            "std=0.225,0.225,0.225 color=bgr sampling=dense"
        ) from None


def _three(text: str) -> list[float]:
    first, second, third = map(float, text.split(","))
    return [first, second, third]
